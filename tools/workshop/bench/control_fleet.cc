#include "tools/workshop/bench/control_fleet.h"

#include <dirent.h>
#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/posix/process_limits.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/pieces.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/fleet.h"

namespace tensorcast::bench {
namespace {

constexpr int kRuns = 5;
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kDescriptorPoll = absl::Milliseconds(250);
constexpr absl::Duration kStartTimeout = absl::Minutes(5);
constexpr absl::Duration kComebackTimeout = absl::Minutes(2);
constexpr absl::Duration kMinSteady = absl::Seconds(10);
constexpr absl::Duration kEndTimeout = absl::Seconds(20);

// Beside those of the nodes' connections.
constexpr int kOwnDescriptors = 256;

using Stub = v1::GlobalStore::Stub;
namespace tls = grpc::experimental;

// The authority alone decides: that the other end is a store is not what is measured.
class AnyName final : public tls::ExternalCertificateVerifier {
 public:
  bool Verify(tls::TlsCustomVerificationCheckRequest*, std::function<void(grpc::Status)>,
              grpc::Status* outcome) override {
    *outcome = grpc::Status::OK;
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}
};

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFrom(const security::Identity::Files& files) {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      ReadAll(files.ca),
      std::vector<tls::IdentityKeyCertPair>{
          {.private_key = ReadAll(files.key), .certificate_chain = ReadAll(files.certificate)}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<AnyName>());
  options.set_check_call_host(false);
  return tls::TlsCredentials(options);
}

// CPU seconds that a process has used, in user and kernel mode.
double CpuSeconds(pid_t pid) {
  const std::string text = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  if (fields.size() < 13) return 0;
  return (std::stod(fields[11]) + std::stod(fields[12])) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int CountDescriptors(pid_t pid) {
  DIR* const folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return count;
}

std::shared_ptr<const Manifest> SomeManifest(int number) {
  ImageLayout layout;
  layout.tensors.push_back({.name = "tensor", .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  if (!AssignOffsets(layout).ok()) return nullptr;
  const std::vector<ChunkDigests> digests(layout.chunk_count(), {.xxh3 = {}, .blake3 = Blake3Digest()});
  return Manifest::Create(layout, digests, {{"number", absl::StrCat(number)}}).value_or(nullptr);
}

class FleetBench {
 public:
  FleetBench(const BenchOptions& options, const FleetBenchOptions& fleet)
      : options_(options),
        fleet_options_(fleet),
        runs_(options.runs != 0 ? options.runs
              : options.smoke   ? 1
                                : kRuns) {}

  absl::StatusOr<Rows> Run() {
    TC_RETURN_IF_ERROR(RaiseDescriptorLimit());
    if (DescriptorLimit() < fleet_options_.nodes + kOwnDescriptors) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "simulate ", fleet_options_.nodes, " nodes: the limit of open files is ", DescriptorLimit(),
          ", and each node has a connection; raise it (ulimit -Hn) or take fewer --nodes"));
    }
    std::vector<std::string> settings = options_.sets;
    TC_ASSIGN_OR_RETURN(
        cluster_,
        BenchCluster::Start(options_, {.daemons = 0, .settings = std::move(settings), .tls = options_.tls}));
    TC_RETURN_IF_ERROR(Certify());
    TC_RETURN_IF_ERROR(Publish());
    TC_RETURN_IF_ERROR(StartFleet());
    if (fleet_options_.hold) return Hold();
    for (int run = 0; run < runs_; ++run) TC_RETURN_IF_ERROR(Measure(run));
    fleet_.reset();
    stub_.reset();
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return Report();
  }

 private:
  // For what is measured from outside: tools/workshop/bench/dashboard.py.
  absl::StatusOr<Rows> Hold() {
    Say(absl::StrCat("control: ", fleet_options_.nodes, " nodes are registered; global store ",
                     cluster_->processes().global_store_address(), ", process ", pid()));
    absl::Notification interrupted;
    const auto registration = options_.context.cancellation.OnCancel([&] { interrupted.Notify(); });
    interrupted.WaitForNotification();
    fleet_.reset();
    stub_.reset();
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return Rows();
  }

  absl::Status Certify() {
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    if (options_.tls) {
      Say(absl::StrCat("control: certificates for ", fleet_options_.nodes, " nodes"));
      for (int node = 0; node < fleet_options_.nodes; ++node) {
        TC_RETURN_IF_ERROR(options_.context.Check("bench"));
        TC_ASSIGN_OR_RETURN(files_.emplace_back(), cluster_->Certify("node/" + Fleet::NameOf(node)));
      }
      credentials = CredentialsFrom(files_.front());
    }
    stub_ = v1::GlobalStore::NewStub(
        OwnChannel(cluster_->processes().global_store_address(), std::move(credentials)));
    return absl::OkStatus();
  }

  // As node 0: inventories name artifacts that the store knows.
  absl::Status Publish() {
    v1::RegisterNodeRequest request;
    *request.mutable_node() = Fleet::Describe(0);
    TC_RETURN_IF_ERROR(rpc::CallUnary(*stub_, &Stub::RegisterNode, Context(), request).status());
    for (int i = 0; i < fleet_options_.replicas; ++i) {
      const std::shared_ptr<const Manifest> manifest = SomeManifest(i);
      if (manifest == nullptr) return absl::InternalError("a manifest could not be made");
      const std::string& bytes = manifest->bytes();
      TC_RETURN_IF_ERROR(
          rpc::CallClientStream(*stub_, &Stub::PublishArtifact, Context(), rpc::PieceCount(bytes.size()),
                                [&](size_t index) {
                                  v1::PublishArtifactRequest message;
                                  if (index == 0) {
                                    message.mutable_node()->set_node_id(Fleet::NameOf(0));
                                    message.mutable_node()->set_incarnation(1);
                                  }
                                  message.set_manifest_piece(std::string(rpc::Piece(bytes, index)));
                                  return message;
                                })
              .status());
      artifacts_.push_back(manifest->id());
    }
    return absl::OkStatus();
  }

  absl::Status StartFleet() {
    Say(absl::StrCat("control: starting ", fleet_options_.nodes, " nodes with ", fleet_options_.replicas,
                     " replicas each"));
    FleetOptions fleet{.address = cluster_->processes().global_store_address(),
                       .nodes = fleet_options_.nodes,
                       .artifacts = artifacts_};
    if (options_.tls) fleet.credentials = [this](int node) { return CredentialsFrom(files_[node]); };
    fleet_ = std::make_unique<Fleet>(std::move(fleet));
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse status, Ask());
    epoch_ = status.store_epoch();
    return AwaitAll(SteadyNow() + kStartTimeout);
  }

  // Until every node has reported to the store that runs, and that store counts every replica.
  absl::Status AwaitAll(SteadyTime deadline) {
    SteadyTime next_count;
    while (true) {
      TC_RETURN_IF_ERROR(options_.context.Check("bench"));
      const SteadyTime now = SteadyNow();
      if (now >= next_count) {
        next_count = now + kDescriptorPoll;
        max_descriptors_ = std::max(max_descriptors_, CountDescriptors(pid()));
      }
      const int reported = fleet_->ReportedTo(epoch_);
      uint64_t replicas = 0;
      if (reported == fleet_options_.nodes) {
        if (absl::StatusOr<v1::GetClusterStatusResponse> status = Ask(); status.ok()) {
          replicas = status->replicas();
        }
        if (replicas == Replicas()) {
          max_descriptors_ = std::max(max_descriptors_, CountDescriptors(pid()));
          return absl::OkStatus();
        }
      }
      if (now > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("of ", fleet_options_.nodes, " nodes ", reported,
                                                        " are back, with ", replicas, " of ", Replicas(),
                                                        " replicas; the last error: ", fleet_->last_error()));
      }
      absl::SleepFor(kPoll);
    }
  }

  // One run: kills the store, restarts it, waits until every node is back, lets the fleet settle, and
  // measures a window of heartbeats alone. The burners run from before the kill until after the window. The
  // CPU time is that of the new process, so it begins with the restart.
  absl::Status Measure(int run) {
    const std::string log = cluster_->processes().global_store().log_path();  // a restart goes on with it
    TC_RETURN_IF_ERROR(StartBurners());
    const int dropped_before = Dropped(log);
    const FleetCounts before = fleet_->counts();
    max_descriptors_ = 0;
    const SteadyTime killed = SteadyNow();
    TC_RETURN_IF_ERROR(cluster_->processes().global_store().Signal(SIGKILL));
    TC_RETURN_IF_ERROR(cluster_->processes().global_store().Wait(killed + kEndTimeout).status());
    TC_RETURN_IF_ERROR(cluster_->processes().RestartGlobalStore());
    absl::StatusOr<v1::GetClusterStatusResponse> status = Ask();
    while (!status.ok() && SteadyNow() < killed + kComebackTimeout) status = Ask();
    TC_RETURN_IF_ERROR(status.status());
    epoch_ = status->store_epoch();
    const absl::Status back = AwaitAll(killed + kComebackTimeout);
    if (!back.ok()) {
      ++not_back_;
      Say(absl::StrCat("control: run ", run + 1, ": not back: ", back.message()));
    }
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - killed);
    back_s_.push_back(seconds);
    cpu_s_.push_back(CpuSeconds(pid()));
    const absl::Duration settled = options_.smoke
                                       ? absl::ZeroDuration()
                                       : std::max(fleet_->counts().heartbeat_interval, absl::Seconds(2));
    // An interval of heartbeats, at least two seconds: the last inventories and retries are not part of the
    // steady state.
    absl::SleepFor(settled);
    const absl::Duration window =
        options_.smoke ? absl::Seconds(1) : std::max(2 * fleet_->counts().heartbeat_interval, kMinSteady);
    const double cpu = CpuSeconds(pid());
    const SteadyTime start = SteadyNow();
    absl::SleepFor(window);
    steady_percent_.push_back(100 * (CpuSeconds(pid()) - cpu) / absl::ToDoubleSeconds(SteadyNow() - start));
    const FleetCounts after = fleet_->counts();
    dropped_.push_back(Dropped(log) - dropped_before);
    refused_.push_back(static_cast<double>(after.refused - before.refused));
    failed_.push_back(static_cast<double>(after.failed - before.failed));
    descriptors_.push_back(max_descriptors_);
    burners_.clear();
    Say(
        absl::StrFormat("control: run %d: back after %.1f s, CPU %.2f s; steady %.0f %% of a core at a "
                        "heartbeat every %s; %.0f "
                        "descriptors, %.0f not heard, %.0f refused, %.0f failed, %d registered again",
                        run + 1, seconds, cpu_s_.back(), steady_percent_.back(),
                        absl::FormatDuration(after.heartbeat_interval), descriptors_.back(), dropped_.back(),
                        refused_.back(), failed_.back(), after.registered_again - before.registered_again));
    return absl::OkStatus();
  }

  absl::Status StartBurners() {
    if (!fleet_options_.burners) return absl::OkStatus();
    for (unsigned int core = 0; core < std::thread::hardware_concurrency(); ++core) {
      TC_ASSIGN_OR_RETURN(burners_.emplace_back(),
                          Process::Start({.argv = {"/bin/sh", "-c", "while :; do :; done"},
                                          .log_path = cluster_->directory() + "/burners"}));
    }
    return absl::OkStatus();
  }

  Rows Report() const {
    Rows rows;
    const auto add = [&](const char* metric, const char* unit, const std::vector<double>& values) {
      rows.push_back({.bench = "control",
                      .lane = absl::StrCat(fleet_options_.nodes, " nodes"),
                      .metric = metric,
                      .value = Summarize(values),
                      .unit = unit});
    };
    add("all back", "s", back_s_);
    add("CPU until then", "s", cpu_s_);
    add("steady CPU", "% of a core", steady_percent_);
    add("descriptors", "", descriptors_);
    add("not heard", "nodes", dropped_);
    add("refused", "calls", refused_);
    add("failed", "calls", failed_);
    rows.front().note = absl::StrCat(
        fleet_options_.replicas, " replicas a node", options_.tls ? ", mutual TLS" : ", in clear",
        fleet_options_.burners ? ", a burner on each core" : "", "; ",
        not_back_ == 0 ? "all came back" : absl::StrCat(not_back_, " runs without all back"));
    return rows;
  }

  // So far, as its log says.
  static int Dropped(const std::string& log) {
    std::ifstream lines(log);
    int dropped = 0;
    for (std::string line; std::getline(lines, line);) {
      dropped += absl::StrContains(line, "sent no heartbeat for") ? 1 : 0;
    }
    return dropped;
  }

  // Names no node: counts alone.
  absl::StatusOr<v1::GetClusterStatusResponse> Ask() {
    v1::GetClusterStatusRequest request;
    request.add_node_names("-");
    return rpc::CallUnary(*stub_, &Stub::GetClusterStatus, Context(), request);
  }
  RequestContext Context() const {
    RequestContext context = options_.context.Child();
    context.deadline = SteadyNow() + absl::Seconds(20);
    return context;
  }
  uint64_t Replicas() const {
    return static_cast<uint64_t>(fleet_options_.nodes) * static_cast<uint64_t>(fleet_options_.replicas);
  }
  pid_t pid() { return cluster_->processes().global_store().pid(); }

  const BenchOptions& options_;
  const FleetBenchOptions fleet_options_;
  const int runs_;
  std::unique_ptr<BenchCluster> cluster_;
  std::vector<security::Identity::Files> files_;  // of each node; with certificates alone
  std::unique_ptr<Stub> stub_;
  std::vector<std::string> artifacts_;
  std::unique_ptr<Fleet> fleet_;
  std::vector<std::unique_ptr<Process>> burners_;
  uint64_t epoch_ = 0;  // of the store that runs
  int not_back_ = 0;
  int max_descriptors_ = 0;  // seen in this run
  std::vector<double> back_s_, cpu_s_, steady_percent_, descriptors_, dropped_, refused_, failed_;
};

}  // namespace

absl::StatusOr<Rows> RunControlFleet(const BenchOptions& options, const FleetBenchOptions& fleet) {
  return FleetBench(options, fleet).Run();
}

}  // namespace tensorcast::bench
