#include "daemon/app/cluster_side.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/records.h"
#include "security/roles.h"

namespace tensorcast::daemon {
namespace {

v1::ReadTraceRequest RequestOf(const otel::TraceId& trace) {
  TraceContext named;
  named.trace_id = trace;
  v1::ReadTraceRequest request;
  request.set_trace_id(named.TraceIdHex());
  return request;
}

// Where the parts of a trace are asked for. Each process is asked once: a trace without its part is still of
// use.
TraceExporter::Options ExporterOptions(const DaemonOptions& options, GlobalStoreSide& store,
                                       PeerClient* peers) {
  TraceExporter::Options exporter;
  exporter.slow_transfer = options.slow_transfer;
  exporter.ask_store = [&store](const RequestContext& context,
                                const otel::TraceId& trace) -> TraceExporter::Answer {
    TC_ASSIGN_OR_RETURN(
        const v1::RecordedSlice slice,
        rpc::CallUnary(*store.channel->records_stub(), &v1::Records::Stub::ReadTrace, context,
                       RequestOf(trace), {.retry_for = absl::ZeroDuration(), .what = "read a trace"}));
    return rpc::FromProto(slice);
  };
  exporter.ask_node = [&store, peers](const RequestContext& context, const std::string& name,
                                      const otel::TraceId& trace) -> TraceExporter::Answer {
    // Where each is, the global store says, never a peer.
    TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, store.client->FindNodes(context, {name}));
    if (nodes.empty()) {
      return absl::NotFoundError(absl::StrCat("read a trace of node ", name,
                                              ": the global store knows no node of this name; see "
                                              "`tensorcast node ls`"));
    }
    TC_ASSIGN_OR_RETURN(
        const v1::RecordedSlice slice,
        peers->ReadTrace(context, PeerAddress(nodes[0].grpc_address(), name), RequestOf(trace)));
    return rpc::FromProto(slice);
  };
  return exporter;
}

}  // namespace

GlobalStoreSide::GlobalStoreSide(const DaemonOptions& options, const v1::Node& node, const Storage* storage)
    : channel(std::make_shared<GlobalStoreChannel>(
          options.global_store,
          rpc::ChannelOptions{.credentials = options.security.credentials,
                              .servers = security::Only(security::Role::kGlobalStore)})),
      client(MakeGlobalStoreClient(channel)),
      known_keys(client.get(), absl::StrCat(options.state_dir, "/known_keys")),
      feed([this](const TransferReport& report) {
        transfers.Add(report);
        RecordTransfer(report);
        LogTransfer(report);
        // The export comes last, since the exporter reads the spans that RecordTransfer has recorded.
        if (traces != nullptr) traces->OnTransfer(report);
      }),
      link({.node = node, .client = client.get(), .feed = &feed, .on_replaced = options.on_replaced}),
      guard(client.get(), &link,
            [storage](const ReplicaInfo& replica) { return storage->HasPacked(replica); }) {}

SourceSide::SourceSide(const DaemonOptions& options, const std::string& node_id, DeviceRuntime* devices,
                       const Storage& storage, std::vector<transport::Transport*> transports,
                       GlobalStoreSide& store)
    : peers(MakePeerClient([credentials = options.security.credentials](const PeerAddress& peer) {
        // The peer has to show the certificate of the node that is named, not of any node.
        return rpc::MakeChannel(peer.address, {.credentials = credentials,
                                               .servers = security::Only(security::Role::kNode),
                                               .server_name = peer.node});
      })),
      traces(ExporterOptions(options, store, peers.get())),
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
                         .background = &background,
                         .find_share = &find_share},
              .devices = devices,
              .objects = storage.imports()}) {
  store.traces = &traces;
}

}  // namespace tensorcast::daemon
