//! The sample contract, `contracts/RequestBoard.sol`.

#![allow(missing_docs, reason = "the contract's source documents what is generated from it")]

alloy::sol! {
    #[derive(Debug, PartialEq, Eq)]
    contract RequestBoard {
        struct Response {
            uint256 id;
            bytes32 content;
            bytes answer;
        }

        event Requested(uint256 indexed id, address indexed from, bytes payload);
        event Responded(uint256 indexed id, address indexed by, bytes answer);

        error NotAResponder(address caller);
        error UnknownRequest(uint256 id);
        error OtherContent(uint256 id, bytes32 content);
        error AlreadyResponded(uint256 id);

        constructor(address[] memory responders);
        function isResponder(address caller) external view returns (bool);
        function isResponded(uint256 id) external view returns (bool);
        function contents(uint256 id) external view returns (bytes32);
        function request(bytes calldata payload) external returns (uint256 id);
        function respond(uint256 id, bytes32 content, bytes calldata answer) external;
        function respondMany(Response[] calldata responses) external;
    }
}
