#include "global_store/service/node_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "proto/types.pb.h"

namespace tensorcast::global_store::node_check_test {
namespace {

constexpr char kClearScreen[] = "\x1B[2J";

v1::Node Honest() {
  v1::Node node;
  node.set_node_id("0192f3a4");
  node.set_name("node a");
  node.set_host_id("host-a");
  node.set_grpc_address("node-a:7001");
  node.set_handle_socket("/run/tensorcast/handles.sock");
  node.add_lanes("ucx-rma");
  node.add_device_lanes("tcp");
  node.add_devices()->set_name("NVIDIA H100 80GB HBM3");
  return node;
}

TEST(NodeCheck, ValidNodeDescription_IsAccepted) {
  EXPECT_TRUE(CheckNodeDescription(Honest()).ok()) << CheckNodeDescription(Honest());
  v1::Node on_socket = Honest();
  on_socket.set_grpc_address("unix:/run/tensorcast/daemon.sock");
  on_socket.clear_handle_socket();
  EXPECT_TRUE(CheckNodeDescription(on_socket).ok()) << CheckNodeDescription(on_socket);
}

TEST(NodeCheck, ControlCharacters_AreRefusedInEveryText) {
  const std::function<void(v1::Node&)> lies[] = {
      [](v1::Node& node) { node.set_node_id(kClearScreen); },
      [](v1::Node& node) { node.set_name(kClearScreen); },
      [](v1::Node& node) { node.set_host_id(kClearScreen); },
      [](v1::Node& node) { node.set_grpc_address(std::string("host") + kClearScreen + ":1"); },
      [](v1::Node& node) {
        node.set_grpc_address(
            "host\xC2\x9B"
            "2J:1");
      },
      [](v1::Node& node) { node.set_grpc_address(std::string("unix:/") + kClearScreen); },
      [](v1::Node& node) { node.set_handle_socket(std::string("/") + kClearScreen); },
      [](v1::Node& node) { node.add_lanes(std::string("tcp") + kClearScreen); },
      [](v1::Node& node) { node.add_device_lanes(std::string("tcp") + kClearScreen); },
      [](v1::Node& node) { node.add_devices()->set_name(kClearScreen); },
      [](v1::Node& node) { node.add_devices()->set_uuid(kClearScreen); },
  };
  for (const auto& lie : lies) {
    v1::Node node = Honest();
    lie(node);
    const absl::Status refused = CheckNodeDescription(node);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << node.ShortDebugString();
    EXPECT_EQ(refused.message().find('\x1B'), std::string::npos) << "the error repeats it";
  }
}

TEST(NodeCheck, InvalidNodeAddressOrTooManyLanes_IsRefused) {
  for (const char* address : {"", "host", "host:0", "host:70000", "ho st:1", "0.0.0.0:1"}) {
    v1::Node node = Honest();
    node.set_grpc_address(address);
    EXPECT_FALSE(CheckNodeDescription(node).ok()) << address;
  }
  v1::Node node = Honest();
  for (int lane = 0; lane < 100; ++lane) node.add_lanes("tcp");
  EXPECT_FALSE(CheckNodeDescription(node).ok());
}

TEST(NodeCheck, NodeExplanation_IsEscapedAndTruncated) {
  EXPECT_EQ(ExplanationOf("no libnccl.so.2"), "no libnccl.so.2");
  EXPECT_EQ(ExplanationOf("\x1B[2J"), "\\x1b[2J");
  EXPECT_EQ(ExplanationOf(std::string(5000, 'x')).size(), 1000u);
}

}  // namespace
}  // namespace tensorcast::global_store::node_check_test
