// The second node of the tests: mines only when told, so that transactions can be replaced.
module.exports = {
  networks: {
    hardhat: {
      chainId: 31337,
      mining: { auto: false, interval: 0 },
    },
  },
  // Nothing is compiled here: scripts/build-contracts does that.
  paths: { sources: "./no-sources" },
};
