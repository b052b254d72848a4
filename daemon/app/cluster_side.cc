#include "daemon/app/cluster_side.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/channel.h"
#include "security/roles.h"

namespace tensorcast::daemon {
namespace {

// Shows reports of transfers to the calls that watch, and keeps the last ones.
ReplicaFeed::TransferSink TellOfTransfersTo(TransferLog* log) {
  return [log](const TransferReport& report) {
    log->Add(report);
    RecordTransfer(report);
    LogTransfer(report);
  };
}

}  // namespace

GlobalStoreSide::GlobalStoreSide(const DaemonOptions& options, const v1::Node& node, const Storage* storage)
    : channel(std::make_shared<GlobalStoreChannel>(
          options.global_store,
          rpc::ChannelOptions{.credentials = options.security.credentials,
                              .servers = security::Only(security::Role::kGlobalStore)})),
      client(MakeGlobalStoreClient(channel)),
      known_keys(client.get(), absl::StrCat(options.state_dir, "/known_keys")),
      feed(TellOfTransfersTo(&transfers)),
      link({.node = node, .client = client.get(), .feed = &feed, .on_replaced = options.on_replaced}),
      guard(client.get(), &link,
            [storage](const ReplicaInfo& replica) { return storage->HasPacked(replica); }) {}

SourceSide::SourceSide(const DaemonOptions& options, const std::string& node_id, DeviceRuntime* devices,
                       const Storage& storage, std::vector<transport::Transport*> transports,
                       GlobalStoreSide& store)
    : peers(MakePeerClient([credentials = options.security.credentials](const PeerAddress& peer) {
        return rpc::MakeChannel(peer.address, {.credentials = credentials,
                                               .servers = security::Only(security::Role::kNode),
                                               .server_name = peer.node});
      })),
      attacher(peers.get(), &pools, devices, options.peer_timeout, options.handle_groups),
      opener({.node_id = node_id,
              .transports = std::move(transports),
              .local = &attacher,
              .peers = peers.get(),
              .peer_timeout = options.peer_timeout}),
      finder({.grants = {.global_store = store.client.get(),
                         .link = &store.link,
                         .peers = peers.get(),
                         .opener = &opener,
                         .running = &grants,
                         .conservation = &conservation,
                         .background = &background},
              .devices = devices,
              .objects = storage.imports()}) {}

}  // namespace tensorcast::daemon
