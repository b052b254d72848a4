#include "tools/workshop/otel_smoke/otel_smoke.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "core/device/fake_device.h"
#include "otel/api/span.h"
#include "otel/sdk/receiver/otlp_receiver.h"
#include "otel/sdk/telemetry.h"
#include "tensorcast/client.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/model/llama_model.h"
#include "tools/workshop/otel_smoke/findings.h"

namespace tensorcast::otel_smoke {
namespace {

constexpr char kKey[] = "otel-smoke/model";
constexpr absl::Duration kArrival = absl::Seconds(20);

const std::vector<std::string>& RequiredMetrics() {
  static const auto* names = new std::vector<std::string>{
      "tc_pool_capacity_bytes",
      "tc_pool_used_bytes",
      "tc_pool_high_water_bytes",
      "tc_pool_evictions_total",
      "tc_p2p_bytes_total",
      "tc_p2p_pulls_total",
      "tc_p2p_throughput_bytes_per_second",
      "tc_p2p_stage_seconds",
      "tc_p2p_stage_busy_seconds",
      "tc_leases_active",
      "tc_disk_read_bytes_total",
      "tc_disk_written_bytes_total",
      "tc_disk_operation_seconds",
      "tc_disk_used_bytes",
      "tc_disk_free_bytes",
      "tc_artifact_load_seconds",
      "tc_artifact_load_bytes_total",
      "tc_artifact_loads_total",
      "tc_rpc_requests_total",
      "tc_rpc_duration_seconds",
      "tc_transfers_completed_total",
      "tc_transfer_execution_seconds",
      "tc_global_store_nodes",
      "tc_global_store_artifacts",
      "tc_global_store_keys",
      "tc_global_store_replicas",
      "tc_global_store_grants_issued_total",
      "tc_global_store_grants_ended_total",
      "tc_global_store_selection_wait_seconds",
      "tc_metadata_store_operation_seconds",
      "tc_process_cpu_seconds_total",
      "tc_process_memory_bytes",
      "tc_host_memory_total_bytes",
      "tc_telemetry_exported_total",
  };
  return *names;
}

// The lease of the get that is held while the metrics are waited for.
bool IsHeldLease(const otel::ReceivedMetric& series) {
  const auto has = [&](const char* label, const char* value) {
    const auto found = series.labels.find(label);
    return found != series.labels.end() && found->second == value;
  };
  return series.name == "tc_leases_active" && series.value > 0 && has("kind", "client") &&
         has("location", "cpu");
}

std::vector<std::string> MetricProblems(const Received& received) {
  std::vector<std::string> problems = CheckMetrics(received, RequiredMetrics());
  if (std::ranges::none_of(received.metrics, IsHeldLease)) {
    problems.push_back("metric tc_leases_active: the lease of a client that holds a replica did not arrive");
  }
  return problems;
}

// In order: a receiver in this process, a cluster that sends to it, three requests with a trace of their own
// each, then the verdict. The last get's replica is held until the metrics have come, since a gauge of leases
// shows what is there when it is collected; the spans are complete only once all processes have stopped and
// flushed.
class Smoke {
 public:
  Smoke(const RequestContext& context, const Options& options) : context_(context), options_(options) {}

  absl::Status Run() {
    TC_RETURN_IF_ERROR(StartCollector());
    TC_RETURN_IF_ERROR(StartCluster());
    TC_RETURN_IF_ERROR(Put());
    TC_RETURN_IF_ERROR(GetOverTcp());
    TC_RETURN_IF_ERROR(GetFromDisk());
    if (receiver_ != nullptr) {
      Say("waiting for the metrics");
      (void)receiver_->WaitFor(kArrival, [&] {
        metrics_ = receiver_->metrics();
        return MetricProblems({.metrics = metrics_}).empty();
      });
    } else {
      Say("waiting until each process has sent its metrics while the last get is held");
      AwaitCollections();
    }
    Say("stopping the processes, which flush what they have");
    held_.reset();
    clients_[0].reset();
    clients_[1].reset();
    TC_RETURN_IF_ERROR(cluster_->Stop());
    telemetry_->Shutdown();
    return options_.endpoint.empty() ? Judge() : TellTraces();
  }

 private:
  void Say(std::string_view line) const {
    std::fprintf(stderr, "otel-smoke: %s\n", std::string(line).c_str());
  }

  absl::Status StartCollector() {
    endpoint_ = options_.endpoint;
    exporter_ = options_.exporter;
    if (endpoint_.empty()) {
      exporter_ = "otlp_grpc";  // whatever the environment says: that is what the receiver takes
      TC_ASSIGN_OR_RETURN(receiver_, otel::OtlpReceiver::Start());
      endpoint_ = receiver_->endpoint();
      Say(absl::StrCat("a receiver of OTLP listens at ", endpoint_));
    }
    v1::OtelConfig config;
    config.set_enabled(true);
    config.set_endpoint(endpoint_);
    config.set_exporter(exporter_);
    config.set_batch_interval("200ms");
    config.set_metric_interval("500ms");
    TC_ASSIGN_OR_RETURN(telemetry_, otel::InitTelemetry(config, "client"));
    return absl::OkStatus();
  }

  absl::Status StartCluster() {
    TC_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("tensorcast-otel-smoke"));
    model_ = directory_->path() + "/model.safetensors";
    TC_RETURN_IF_ERROR(WriteLlamaModel(model_, {.bytes = options_.model_bytes, .context = context_}));
    const uint64_t pool = options_.model_bytes + options_.model_bytes / 4 + (uint64_t{64} << 20);
    TC_ASSIGN_OR_RETURN(devices_, CreateFakeRuntime({.device_count = 1, .device_bytes = pool}));
    ClusterOptions cluster{.binary = options_.binary, .directory = directory_->path()};
    std::vector<std::string> observed = {
        "observability.otel.enabled=true", "observability.otel.endpoint=" + endpoint_,
        "observability.otel.batch_interval=200ms", "observability.otel.metric_interval=500ms"};
    if (!exporter_.empty()) observed.push_back("observability.otel.exporter=" + exporter_);
    cluster.global_store_settings = observed;
    cluster.daemon_settings = observed;
    for (const std::string& setting :
         {absl::StrCat("daemon.host_pool=", pool + (uint64_t{128} << 20)),
          std::string("daemon.device_runtime=fake"), std::string("daemon.fake_devices=1"),
          absl::StrCat("daemon.fake_device_memory=", pool)}) {
      cluster.daemon_settings.push_back(setting);
    }
    Say("starting a global store and two daemons, with telemetry");
    TC_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(cluster));
    for (int node = 0; node < 2; ++node) {
      TC_ASSIGN_OR_RETURN(clients_[node],
                          client::Client::Connect(
                              {.daemon = cluster_->addresses(node).unix_socket, .devices = devices_.get()}));
    }
    return absl::OkStatus();
  }

  // What a foreign collector has is not ours to ask. All processes collect at the same interval; once this
  // one did so several times, the others did at least once.
  void AwaitCollections() const {
    const auto& metrics = telemetry_->counters().of(otel::sdk::Signal::kMetrics);
    const auto collected = [&metrics] { return metrics.exported + metrics.dropped(); };
    const uint64_t enough = collected() + 4;
    for (const SteadyTime end = SteadyNow() + kArrival; collected() < enough && SteadyNow() < end;) {
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  // A context with a trace of its own, which is expected to arrive.
  RequestContext Expect(ExpectedTrace expected) {
    RequestContext context = context_.Child();
    context.trace = TraceContext::NewRoot();
    context.request_id = NewUuid();
    expected.trace_id = context.trace.TraceIdHex();
    traces_.push_back(std::move(expected));
    return context;
  }

  absl::Status Put() {
    Say("put on node-0, durable");
    const RequestContext context =
        Expect({.what = "put",
                .spans = {"Client/Put", "StoreDaemon/ImportArtifact", "StoreEngine/DiskIngest", "Disk/Read",
                          "Disk/Write", "Disk/Commit", "GlobalStore/PublishArtifact", "MetadataStore/Put"},
                .linked = {},
                .processes = 3,
                .attributes = {{"StoreDaemon/ImportArtifact", "tc.key"},
                               {"StoreDaemon/ImportArtifact", "tc.session.id"},
                               {"GlobalStore/PublishArtifact", "tc.node.id"}}});
    TC_ASSIGN_OR_RETURN(put_, clients_[0]->Import(context, model_, {.key = kKey, .durable = true}));
    return absl::OkStatus();
  }

  absl::Status GetOverTcp() {
    Say("get on node-1 into a GPU, over tcp");
    const RequestContext context =
        Expect({.what = "P2P get to a GPU",
                .spans = {"Client/Get", "StoreDaemon/MaterializeReplica",
                          "GlobalStore/RequestReplicaTransport", "P2P/Connect", "StoreDaemon/OpenPull",
                          "StoreEngine/P2PIngest", "P2P/Pull", "P2P/Verify", "Device/Copy", "P2P/Serve",
                          "StoreDaemon/ClosePull", "GlobalStore/CompleteReplicaTransport"},
                .linked = {"P2P/Serve", "StoreEngine/P2PIngest"},
                .processes = 4,
                .below = {{"GlobalStore/RequestReplicaTransport", "StoreEngine/P2PIngest"},
                          {"P2P/Connect", "StoreEngine/P2PIngest"},
                          {"StoreDaemon/ClosePull", "StoreEngine/P2PIngest"},
                          {"GlobalStore/CompleteReplicaTransport", "StoreEngine/P2PIngest"}},
                .attributes = {{"StoreDaemon/MaterializeReplica", "tc.device.id"},
                               {"GlobalStore/RequestReplicaTransport", "tc.artifact.id"},
                               {"GlobalStore/RequestReplicaTransport", "tc.node.id"},
                               {"StoreDaemon/OpenPull", "tc.replica.id"}}});
    return clients_[1]->Get(context, kKey, {.location = "gpu:0", .lane = "tcp"}).status();
  }

  absl::Status GetFromDisk() {
    Say("get on node-0 from its disk");
    TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
    // Else the replica of the put would be attached to, and nothing read.
    TC_RETURN_IF_ERROR(admin->EvictReplica(context_, put_.replica_id, /*force=*/true));
    const RequestContext context = Expect(
        {.what = "disk get",
         .spans = {"Client/Get", "StoreDaemon/MaterializeReplica", "StoreEngine/DiskIngest", "Disk/Read"},
         .linked = {},
         .processes = 2});
    TC_ASSIGN_OR_RETURN(held_, clients_[0]->Get(context, kKey, {.location = "cpu", .lane = "disk"}));
    return absl::OkStatus();
  }

  Received Arrived() const {
    return {.spans = receiver_->spans(), .metrics = metrics_, .logs = receiver_->logs()};
  }

  std::vector<std::string> Problems(const Received& received) const {
    std::vector<std::string> problems;
    const auto add = [&](std::vector<std::string> more) {
      problems.insert(problems.end(), more.begin(), more.end());
    };
    for (const ExpectedTrace& trace : traces_) add(CheckTrace(received, trace));
    add(MetricProblems(received));
    add(CheckLogs(received, traces_));
    return problems;
  }

  absl::Status Judge() const {
    // All processes have flushed and ended; the last of it may still be on its way through this one.
    (void)receiver_->WaitFor(kArrival, [&] { return Problems(Arrived()).empty(); });
    const Received received = Arrived();
    const std::vector<std::string> problems = Problems(received);
    if (options_.json) {
      PrintJson(received, problems);
    } else {
      PrintText(received, problems);
    }
    if (problems.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("telemetry has ", problems.size(), " holes: ", absl::StrJoin(problems, "; ")));
  }

  void PrintText(const Received& received, const std::vector<std::string>& problems) const {
    for (const ExpectedTrace& trace : traces_) std::printf("%s\n", DescribeTrace(received, trace).c_str());
    std::printf("metrics\n%s\n", DescribeMetrics(received, RequiredMetrics()).c_str());
    std::printf("log lines of these traces\n%s\n", DescribeLogs(received, traces_).c_str());
    std::printf("%zu spans, %zu series, %zu log lines arrived\n", received.spans.size(),
                received.metrics.size(), received.logs.size());
    if (problems.empty()) {
      std::printf("coherent: each request is one trace over all its processes, without orphans\n");
    }
    for (const std::string& problem : problems) std::printf("MISSING: %s\n", problem.c_str());
  }

  void PrintJson(const Received& received, const std::vector<std::string>& problems) const {
    nlohmann::json traces = nlohmann::json::array();
    for (const ExpectedTrace& trace : traces_) {
      traces.push_back({{"what", trace.what}, {"trace_id", trace.trace_id}});
    }
    const nlohmann::json all = {{"spans", received.spans.size()}, {"series", received.metrics.size()},
                                {"logs", received.logs.size()},   {"traces", traces},
                                {"problems", problems},           {"coherent", problems.empty()}};
    std::printf("%s\n", all.dump(2).c_str());
  }

  // There are collectors for traces alone: what they do not take of the rest is said, and is not an error.
  absl::Status TellTraces() const {
    for (size_t i = 0; i < otel::sdk::kSignals; ++i) {
      if (telemetry_->counters().signals[i].dropped() == 0) continue;
      const std::string refused =
          absl::StrCat("the collector at ", endpoint_, " did not take the ", otel::sdk::kSignalNames[i]);
      if (i == static_cast<size_t>(otel::sdk::Signal::kTraces)) {
        return absl::UnavailableError(absl::StrCat(refused, ": ", telemetry_->Advice()));
      }
      std::printf("%s\n", refused.c_str());
    }
    std::printf("sent to %s; look for these traces\n", endpoint_.c_str());
    for (const ExpectedTrace& trace : traces_) {
      std::printf("  %-24s %s\n", trace.what.c_str(), trace.trace_id.c_str());
    }
    return absl::OkStatus();
  }

  const RequestContext context_;
  const Options& options_;
  std::unique_ptr<otel::OtlpReceiver> receiver_;
  std::vector<otel::ReceivedMetric> metrics_;  // while the processes lived and the last get was held
  std::string endpoint_;
  std::string exporter_;
  std::unique_ptr<otel::Telemetry> telemetry_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::string model_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<client::Client> clients_[2];
  client::PutResult put_;
  std::unique_ptr<client::Replica> held_;  // a client's lease, for the gauges to show
  std::vector<ExpectedTrace> traces_;
};

}  // namespace

absl::Status Run(const RequestContext& context, const Options& options) {
  return Smoke(context, options).Run();
}

}  // namespace tensorcast::otel_smoke
