// SPDX-License-Identifier: Apache-2.0 OR MIT
pragma solidity 0.8.37;

/// Requests are asked here and answered here, each once.
///
/// Ids are counted, so a reorg may give an id to other content: an answer names the
/// content that it is for.
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

    mapping(address => bool) public isResponder;
    mapping(uint256 => bool) public isResponded;
    /// What was asked: the keccak256 hash of each request's payload.
    bytes32[] public contents;

    constructor(address[] memory responders) {
        for (uint256 i = 0; i < responders.length; i++) {
            isResponder[responders[i]] = true;
        }
    }

    function request(bytes calldata payload) external returns (uint256 id) {
        id = contents.length;
        contents.push(keccak256(payload));
        emit Requested(id, msg.sender, payload);
    }

    function respond(uint256 id, bytes32 content, bytes calldata answer) external {
        _respond(id, content, answer);
    }

    /// All or none.
    function respondMany(Response[] calldata responses) external {
        for (uint256 i = 0; i < responses.length; i++) {
            _respond(responses[i].id, responses[i].content, responses[i].answer);
        }
    }

    function _respond(uint256 id, bytes32 content, bytes calldata answer) private {
        if (!isResponder[msg.sender]) revert NotAResponder(msg.sender);
        if (id >= contents.length) revert UnknownRequest(id);
        if (contents[id] != content) revert OtherContent(id, contents[id]);
        if (isResponded[id]) revert AlreadyResponded(id);
        isResponded[id] = true;
        emit Responded(id, msg.sender, answer);
    }
}
