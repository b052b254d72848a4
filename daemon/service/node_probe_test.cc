#include "daemon/service/node_probe.h"

#include <string>

#include "daemon/service/service_fixture.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon::node_probe_test {
namespace {

using ::testing::HasSubstr;

class NodeProbeTest : public ServiceTest {
 protected:
  // The double of the global store finds a node by what it is asked for: here its id.
  void Knows(const std::string& node_id) {
    store.With([&](FakeGlobalStore& fake) {
      v1::Node& known = fake.nodes[node_id];
      known.set_node_id(node_id);
      known.set_name("name-of-" + node_id);
      known.set_grpc_address("at-" + node_id);
    });
  }
  absl::StatusOr<v1::ProbeNodeResponse> Probe(const std::string& node_id) {
    return NodeProbe({.global_store = &store, .peers = &peers}).Probe(context, node_id);
  }
};

TEST_F(NodeProbeTest, KnownNode_IsCalledAtItsAddressAsItself) {
  Knows("b");
  peers.measure = [this](const RequestContext& call, const PeerAddress& peer) {
    EXPECT_EQ(peer.address, "at-b");
    EXPECT_EQ(peer.node, "name-of-b");
    EXPECT_LT(call.deadline, context.deadline) << "a call of its own is bounded";
    return absl::Milliseconds(3);
  };
  const auto response = Probe("b");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->has_error());
  EXPECT_EQ(rpc::FromProto(response->round_trip()), absl::Milliseconds(3));
}

TEST_F(NodeProbeTest, SilentNode_IsAnAnswer) {
  Knows("b");
  const auto response = Probe("b");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(rpc::FromProto(response->error()), absl::UnavailableError("no answer"));
}

TEST_F(NodeProbeTest, UnknownNode_IsNotCalled) {
  Knows("b");
  // A node may be called as another's id.
  store.With([](FakeGlobalStore& fake) { fake.nodes["c"] = fake.nodes["b"]; });
  peers.measure = [](const RequestContext&, const PeerAddress&) {
    ADD_FAILURE() << "called";
    return absl::ZeroDuration();
  };
  for (const char* node_id : {"127.0.0.1:22", "c", "name-of-b"}) {
    EXPECT_TRUE(absl::IsNotFound(Probe(node_id).status())) << node_id;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Probe("").status()));
}

TEST_F(NodeProbeTest, StoreAway_IsAnError) {
  Knows("b");
  store.With([](FakeGlobalStore& fake) { fake.down = absl::UnavailableError("the store is away"); });
  EXPECT_THAT(Probe("b").status().message(), HasSubstr("the store is away"));
}

}  // namespace
}  // namespace tensorcast::daemon::node_probe_test
