// The second node of the tests: mines only when told, so that transactions can be replaced. HARDHAT_HARDFORK names
// the rules of another time, such as "berlin", before there was a base fee.
const hardfork = process.env.HARDHAT_HARDFORK;
module.exports = {
  networks: {
    hardhat: {
      chainId: 31337,
      mining: { auto: false, interval: 0 },
      ...(hardfork && { hardfork }),
    },
  },
  // Nothing is compiled here: scripts/build-contracts does that.
  paths: { sources: "./no-sources" },
};
