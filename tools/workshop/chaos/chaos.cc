#include "tools/workshop/chaos/chaos.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "core/device/fake_device.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "tools/workshop/chaos/invariants.h"
#include "tools/workshop/chaos/key_load.h"
#include "tools/workshop/chaos/liar.h"
#include "tools/workshop/chaos/schedule.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::chaos {
namespace {

constexpr absl::Duration kLoadPace = absl::Milliseconds(100);  // of programs that bind and resolve keys
constexpr int kOperationTimeoutSeconds = 20;
// A client may take a little longer than the deadline it gave its operation, to connect and to compare.
constexpr absl::Duration kHangTimeout = absl::Seconds(kOperationTimeoutSeconds + 15);
constexpr absl::Duration kRecoveryTimeout = absl::Seconds(40);
constexpr char kRoundKey[] = "round";
constexpr uint32_t kBaseReplicas = 2;  // in memory, and packed
constexpr int kLogLines = 40;
constexpr int kEtcdMembers = 3;
constexpr int kGlobalStorePort = 7000;
constexpr int kLostItsLease = 1;                        // the exit code
constexpr uint64_t kStagingBytes = uint64_t{64} << 20;  // what a daemon sets aside of its pool

// Between hosts, a second: so that there is a middle in which a fault can come, and time to feed others.
constexpr uint64_t kSendLimit = uint64_t{64} << 20;

RequestContext Context() { return RequestContext::Background(kRecoveryTimeout); }
SteadyTime RecoveryDeadline() { return SteadyNow() + kRecoveryTimeout; }

absl::Status IgnoreNotFound(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// The next version of a model: one percent of its bytes differ.
absl::Status WriteNextVersion(const std::string& model, const std::string& path) {
  std::ifstream file(model, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) {
    return absl::DataLossError(absl::StrCat("read ", model, ": it is empty"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (uint64_t i = sizeof(header) + header; i < bytes.size(); i += 100) bytes[i] ^= 1;
  std::ofstream next(path, std::ios::binary);
  if (next.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush().good()) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("write ", path, ": the folder cannot be written"));
}

// A round: bring the cluster to a whole state, prepare the operation's inputs, start its client, strike at
// the drawn moment, wait for the client's end, and judge what the client said. Then the cluster recovers:
// acknowledged keys and every replica are checked, the same operation runs undisturbed, and the state goes
// back to the baseline, so that each round begins like the first. Every wait has a deadline, and the first
// broken invariant ends the run.
class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {}

  absl::Status Run();

 private:
  struct Outcome {
    int exit_code = -1;
    std::string said;  // the artifact id, or what went wrong
    std::string said_before;
    absl::Duration took;
  };

  absl::Status Start();
  absl::Status StartEtcd(ClusterOptions& cluster);
  absl::Status StartLoad();
  absl::Status StartLiars();
  // What they do may be refused, and they may be told that the global store is away: neither is a failure.
  void Lie();
  absl::Status CheckLoad();
  absl::Status MeasureOperations();
  absl::Status Round(int number, const Fault& fault);
  absl::Status CheckOthersRun(const Fault& fault);
  absl::Status Restart();  // of every server that does not run
  absl::Status Recover();
  absl::Status BackToNormal();
  absl::Status Prepare(const Operation& operation);
  absl::Status CheckOutcome(const Operation& operation, const Outcome& outcome, bool undisturbed);

  // Where the client of an operation asks, in its order.
  std::vector<int> NodesOf(const Operation& operation) const;
  absl::Status CheckNobodyElseFailed(const Fault& fault, const Outcome& outcome) const;
  absl::Status CheckFailoverUnseen(const Fault& fault, const Outcome& outcome) const;
  absl::StatusOr<std::unique_ptr<Process>> StartClient(const Operation& operation);
  absl::StatusOr<Outcome> Finish(Process& client, SteadyTime began);
  absl::StatusOr<Outcome> Undisturbed(const Operation& operation);
  absl::Status Inject(const Fault& fault, Process& client);
  absl::Status InjectIntoEtcd(const Fault& fault);
  Process& Target(const Fault& fault, Process& client);

  std::string ModelOf(const Operation& operation) const {
    const char* const model = operation.by_difference ? "next.safetensors"
                              : operation.writes      ? "round.safetensors"
                                                      : kBaseModel;
    return absl::StrCat(directory_->path(), "/", model);
  }
  const std::string& Address(int node) const { return cluster_->addresses(node).unix_socket; }
  std::string Logs() const;

  const ChaosOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<global_store::etcd::EtcdCluster> etcd_;  // of several global stores
  std::optional<int> dead_member_;                         // of etcd
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Invariants> invariants_;
  std::string base_artifact_;
  std::unique_ptr<KeyLoad> load_;  // of several global stores
  std::vector<std::unique_ptr<Liar>> liars_;
  std::map<const Operation*, absl::Duration> usual_;  // how long it takes undisturbed
  int clients_started_ = 0;
};

absl::Status Chaos::Run() {
  const SteadyTime began = SteadyNow();
  absl::FPrintF(options_.out, "chaos: seed %d, %d faults, %d daemons, %d global stores\n", options_.seed,
                options_.faults, options_.daemons, options_.global_stores);
  absl::Status status = Start();
  int round = 0;
  for (; status.ok() && round < options_.faults && SteadyNow() - began < options_.budget; ++round) {
    status = Round(round + 1, etcd_ == nullptr ? DrawFault(random_) : DrawFault(random_, etcd_->members()));
  }
  if (status.ok()) status = CheckLoad();
  if (!status.ok()) {
    absl::FPrintF(
        options_.out,
        "BROKEN: %s\n%s\nagain: chaos --seed %d --faults %d --daemons %d --global-stores %d --liars %d\n",
        status.ToString(), Logs(), options_.seed, round, options_.daemons, options_.global_stores,
        options_.liars);
    return status;
  }
  absl::FPrintF(options_.out, "%d faults in %s: every invariant held\n", round,
                absl::FormatDuration(absl::Trunc(SteadyNow() - began, absl::Milliseconds(100))));
  return cluster_->Stop();
}

absl::Status Chaos::Start() {
  TC_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("tensorcast-chaos"));
  TC_ASSIGN_OR_RETURN(devices_, OpenDevices());
  for (const auto& [name, seed] : {std::pair{"base", 1}, std::pair{"round", 2}}) {
    TC_RETURN_IF_ERROR(WriteLlamaModel(absl::StrCat(directory_->path(), "/", name, ".safetensors"),
                                       {.bytes = options_.model_bytes, .seed = static_cast<uint64_t>(seed)}));
  }
  TC_RETURN_IF_ERROR(WriteNextVersion(absl::StrCat(directory_->path(), "/", kBaseModel),
                                      absl::StrCat(directory_->path(), "/next.safetensors")));
  ClusterOptions cluster{
      .binary = options_.binary, .directory = directory_->path(), .daemons = options_.daemons};
  cluster.global_store_settings = {"global_store.heartbeat_interval=100ms", "global_store.node_ttl=2s",
                                   "global_store.grant_ttl=2s"};
  cluster.daemon_settings = {absl::StrCat("daemon.host_pool=", 4 * options_.model_bytes + kStagingBytes),
                             absl::StrCat("daemon.fake_device_memory=", 2 * options_.model_bytes),
                             absl::StrCat("daemon.device_runtime=", devices_->backend()),
                             "daemon.fake_devices=1",
                             "daemon.staging_buffers=2",
                             "daemon.peer_timeout=400ms",
                             absl::StrCat("daemon.limits.send=", kSendLimit)};
  // Nodes 0 and 1 say that they share a host, so the local lane takes part, too.
  for (int node = 0; node < options_.daemons; ++node) {
    cluster.settings_of_daemon.push_back({absl::StrCat("daemon.host_id=host-", std::max(node, 1))});
    if (devices_->backend() != "cuda") continue;
    const auto gpus = static_cast<int>(devices_->devices().size());
    cluster.daemon_environments.push_back({{"CUDA_VISIBLE_DEVICES", absl::StrCat(node % gpus)}});
  }
  if (options_.global_stores > 1) TC_RETURN_IF_ERROR(StartEtcd(cluster));
  TC_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(cluster));
  invariants_ = std::make_unique<Invariants>(*cluster_, *devices_);

  TC_ASSIGN_OR_RETURN(const auto client, client::Client::Connect({.daemon = Address(0)}));
  const std::string model = directory_->path() + "/base.safetensors";
  TC_ASSIGN_OR_RETURN(const client::PutResult base,
                      client->Import(Context(), model, {.key = kBaseKey, .durable = true}));
  base_artifact_ = base.artifact_id;
  invariants_->Acknowledge(kBaseKey, base_artifact_, model);
  if (etcd_ != nullptr) TC_RETURN_IF_ERROR(StartLoad());
  TC_RETURN_IF_ERROR(StartLiars());
  return MeasureOperations();
}

// One shares node 0's host, as it says, the others have hosts of their own.
absl::Status Chaos::StartLiars() {
  for (int i = 0; i < options_.liars; ++i) {
    const std::string name = absl::StrCat("liar-", i);
    TC_ASSIGN_OR_RETURN(
        liars_.emplace_back(),
        Liar::Start({.global_store = cluster_->global_store_address(),
                     .name = name,
                     .host_id = i == 0 ? "host-1" : name,
                     .handle_socket = i == 0 ? absl::StrCat(directory_->path(), "/liar.handles") : "",
                     .listen = absl::StrCat("unix:", directory_->path(), "/", name, ".sock")}));
  }
  return absl::OkStatus();
}

void Chaos::Lie() {
  if (liars_.empty()) return;
  // Drawn whether the cluster answers or not, so that the seed alone determines the faults.
  std::vector<bool> with_grants;
  for (size_t i = 0; i < liars_.size(); ++i) with_grants.push_back(random_() % 2 == 0);
  const auto admin = client::AdminClient::Connect(Address(0));
  if (!admin.ok()) return;
  const auto artifacts =
      (*admin)->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration(), /*replicas=*/true);
  if (!artifacts.ok()) return;
  for (size_t i = 0; i < liars_.size(); ++i) {
    liars_[i]->Claim(*artifacts).IgnoreError();
    liars_[i]->Accuse(*artifacts, with_grants[i]).IgnoreError();
  }
}

absl::Status Chaos::StartLoad() {
  KeyLoadOptions load{
      .artifacts = {base_artifact_}, .seed = static_cast<uint32_t>(options_.seed), .pace = kLoadPace};
  for (int node = 0; node < options_.daemons; ++node) load.daemons.push_back(Address(node));
  TC_ASSIGN_OR_RETURN(load_, KeyLoad::Start(load));
  return absl::OkStatus();
}

absl::Status Chaos::CheckLoad() {
  if (load_ == nullptr) return absl::OkStatus();
  load_->Stop();
  TC_RETURN_IF_ERROR(load_->Check());
  const KeyHistory& history = load_->history();
  absl::FPrintF(
      options_.out,
      "keys: %d calls, %d changes acknowledged, %d without an answer: as of one store that does one "
      "thing at a time\n",
      history.size(), history.acknowledged(), history.unknown());
  return absl::OkStatus();
}

absl::Status Chaos::StartEtcd(ClusterOptions& cluster) {
  TC_ASSIGN_OR_RETURN(etcd_,
                      global_store::etcd::EtcdCluster::Start(directory_->path() + "/etcd", kEtcdMembers));
  for (int i = 0; i < options_.global_stores; ++i) {
    cluster.global_store_addresses.push_back(absl::StrCat(etcd_->Host(), ":", kGlobalStorePort + i));
  }
  cluster.global_store_settings.insert(
      cluster.global_store_settings.end(),
      {"global_store.metadata_store=etcd",
       absl::StrCat("global_store.etcd.endpoints=", absl::StrJoin(etcd_->endpoints(), ","))});
  return absl::OkStatus();
}

// Also warms every process up: what it holds afterwards is what it may hold.
absl::Status Chaos::MeasureOperations() {
  for (const Operation& operation : Operations()) {
    TC_ASSIGN_OR_RETURN(const Outcome outcome, Undisturbed(operation));
    usual_[&operation] = outcome.took;
    // A version that comes whole everywhere would be right, too, and show nothing of differences.
    const int followers = options_.daemons - 1;
    if (operation.by_difference &&
        !absl::StrContains(outcome.said_before, absl::StrCat("used at ", followers, " of "))) {
      return absl::InternalError(absl::StrCat("undisturbed: ", outcome.said_before));
    }
    TC_RETURN_IF_ERROR(BackToNormal());
  }
  return invariants_->RecordBaseline(RecoveryDeadline());
}

absl::StatusOr<std::unique_ptr<Process>> Chaos::StartClient(const Operation& operation) {
  ProcessOptions process;
  std::vector<std::string> daemons;
  for (const int node : NodesOf(operation)) daemons.push_back(Address(node));
  process.argv = {options_.victim_binary, absl::StrJoin(daemons, ","),
                  operation.verb,         operation.writes ? kRoundKey : kBaseKey,
                  operation.location,     operation.lane,
                  ModelOf(operation),     absl::StrCat(kOperationTimeoutSeconds)};
  process.log_path = absl::StrCat(directory_->path(), "/client-", clients_started_++, ".log");
  process.ready_pipe = true;
  TC_ASSIGN_OR_RETURN(auto client, Process::Start(process));
  TC_RETURN_IF_ERROR(client->WaitReady(SteadyNow() + kHangTimeout).status());
  return client;
}

std::vector<int> Chaos::NodesOf(const Operation& operation) const {
  std::vector<int> nodes = {operation.node};
  for (int node = 1; operation.fans_out && node < cluster_->daemons(); ++node) {
    if (node != operation.node) nodes.push_back(node);
  }
  return nodes;
}

// A receiver that dies or stops takes no other receiver along.
absl::Status Chaos::CheckNobodyElseFailed(const Fault& fault, const Outcome& outcome) const {
  // Of a new version the receiver is its only source at first.
  const bool of_receiver = (fault.victim == Victim::kReceiver && !fault.operation->source_is_receiver) ||
                           fault.victim == Victim::kOtherReceiver;
  if (!fault.operation->fans_out || !of_receiver || outcome.exit_code != 1) return absl::OkStatus();
  const int struck = fault.victim == Victim::kReceiver ? fault.operation->node : kOtherReceiver;
  const std::vector<int> nodes = NodesOf(*fault.operation);
  // "UNAVAILABLE: at daemons 1 3: ..."
  const std::vector<std::string_view> parts = absl::StrSplit(outcome.said, absl::MaxSplits(": ", 2));
  std::string_view failed = parts.size() == 3 ? parts[1] : "";
  if (!absl::ConsumePrefix(&failed, "at daemons ")) {
    return absl::InternalError(absl::StrCat("the client does not say which daemons failed: ", outcome.said));
  }
  for (const std::string_view text : absl::StrSplit(failed, ' ')) {
    size_t index = 0;
    if (absl::SimpleAtoi(text, &index) && index < nodes.size() && nodes[index] == struck) continue;
    return absl::InternalError(
        absl::StrCat("the fault was at node-", struck, ", and others failed: ", outcome.said));
  }
  return absl::OkStatus();
}

// Where another global store takes over, what runs ends as if nothing had happened.
absl::Status Chaos::CheckFailoverUnseen(const Fault& fault, const Outcome& outcome) const {
  const bool away = fault.victim == Victim::kGlobalStore || fault.victim == Victim::kEtcd;
  if (etcd_ == nullptr || !away || outcome.exit_code == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("another global store was to take over, and the client saw: ", outcome.said));
}

absl::StatusOr<Chaos::Outcome> Chaos::Finish(Process& client, SteadyTime began) {
  Outcome outcome;
  const absl::StatusOr<int> code = client.Wait(SteadyNow() + kHangTimeout);
  if (!code.ok()) {
    return absl::InternalError(absl::StrCat("hang past the deadline: ", code.status().message()));
  }
  outcome.exit_code = *code;
  outcome.took = SteadyNow() - began;
  outcome.said = FileTail(client.log_path(), 1);
  outcome.said_before = FileTail(client.log_path(), 2);
  return outcome;
}

absl::StatusOr<Chaos::Outcome> Chaos::Undisturbed(const Operation& operation) {
  TC_RETURN_IF_ERROR(Prepare(operation));
  TC_ASSIGN_OR_RETURN(const auto client, StartClient(operation));
  TC_ASSIGN_OR_RETURN(Outcome outcome, Finish(*client, SteadyNow()));
  TC_RETURN_IF_ERROR(Annotate(CheckOutcome(operation, outcome, /*undisturbed=*/true),
                              absl::StrCat(operation.name, ", undisturbed")));
  return outcome;
}

absl::Status Chaos::CheckOutcome(const Operation& operation, const Outcome& outcome, bool undisturbed) {
  if (outcome.exit_code == 3) return absl::DataLossError(outcome.said);
  if (outcome.exit_code == 0) {
    if (operation.writes) invariants_->Acknowledge(kRoundKey, outcome.said, ModelOf(operation));
    return absl::OkStatus();
  }
  // Under a fault a client may fail with an error (1) or be the one that is killed. Any other code is a
  // crash.
  const bool crashed = outcome.exit_code != 1 && outcome.exit_code != 128 + SIGKILL;
  if (!undisturbed && !crashed) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("client ended with ", outcome.exit_code, ": ", outcome.said));
}

Process& Chaos::Target(const Fault& fault, Process& client) {
  switch (fault.victim) {
    case Victim::kSource:
      return cluster_->daemon(0);
    case Victim::kReceiver:
      return cluster_->daemon(fault.operation->node);
    case Victim::kClient:
      return client;
    case Victim::kOtherReceiver:
      return cluster_->daemon(kOtherReceiver);
    case Victim::kGlobalStore:
    case Victim::kEtcd:  // no process of the cluster's: InjectIntoEtcd
      break;
  }
  return cluster_->global_store();
}

absl::Status Chaos::Inject(const Fault& fault, Process& client) {
  // The moment is a share of the time that the operation took undisturbed, so that all of its stages are met.
  absl::SleepFor(fault.moment * usual_[fault.operation]);
  if (fault.victim == Victim::kEtcd) return InjectIntoEtcd(fault);
  Process& target = Target(fault, client);
  // The moment may lie behind the operation's end; then nothing is struck.
  if (&target == &client && !client.running()) return absl::OkStatus();
  if (fault.kill) {
    TC_RETURN_IF_ERROR(target.Signal(SIGKILL));
    TC_RETURN_IF_ERROR(target.Wait(RecoveryDeadline()).status());
    return fault.restart_at_once ? Restart() : absl::OkStatus();
  }
  TC_RETURN_IF_ERROR(target.Signal(SIGSTOP));
  absl::SleepFor(fault.stop_for);
  return target.Signal(SIGCONT);
}

absl::Status Chaos::InjectIntoEtcd(const Fault& fault) {
  if (fault.kill) {
    etcd_->Kill(fault.member);
    dead_member_ = fault.member;
    return fault.restart_at_once ? Restart() : absl::OkStatus();
  }
  etcd_->Signal(fault.member, SIGSTOP);
  absl::SleepFor(fault.stop_for);
  etcd_->Signal(fault.member, SIGCONT);
  return absl::OkStatus();
}

absl::Status Chaos::Round(int number, const Fault& fault) {
  const Operation& operation = *fault.operation;
  const absl::Duration moment = fault.moment * usual_[&operation];
  absl::FPrintF(
      options_.out, "#%-3d %-16s %s %s after %.0f ms%s\n", number, operation.name,
      fault.kill ? "kill" : "stop", Name(fault.victim), absl::ToDoubleMilliseconds(moment),
      fault.kill ? std::string() : absl::StrFormat(", for %d ms", absl::ToInt64Milliseconds(fault.stop_for)));
  std::fflush(options_.out);
  TC_RETURN_IF_ERROR(Recover());  // a leader may have lost its lease since the round before
  TC_RETURN_IF_ERROR(Prepare(operation));
  Lie();
  TC_ASSIGN_OR_RETURN(const auto client, StartClient(operation));
  const SteadyTime began = SteadyNow();
  TC_RETURN_IF_ERROR(Inject(fault, *client));
  TC_ASSIGN_OR_RETURN(const Outcome outcome, Finish(*client, began));
  TC_RETURN_IF_ERROR(CheckOutcome(operation, outcome, /*undisturbed=*/false));
  TC_RETURN_IF_ERROR(CheckNobodyElseFailed(fault, outcome));
  TC_RETURN_IF_ERROR(CheckFailoverUnseen(fault, outcome));
  const std::string said = outcome.exit_code == 0   ? "done"
                           : outcome.exit_code == 1 ? outcome.said
                                                    : "ended with the client";
  absl::FPrintF(options_.out, "     %.2f s: %s\n", absl::ToDoubleSeconds(outcome.took), said);

  const SteadyTime recovery_began = SteadyNow();
  TC_RETURN_IF_ERROR(CheckOthersRun(fault));
  TC_RETURN_IF_ERROR(Recover());
  TC_RETURN_IF_ERROR(invariants_->CheckAcknowledged(RecoveryDeadline()));
  TC_RETURN_IF_ERROR(invariants_->VerifyReplicas(RecoveryDeadline(), ModelOf(operation)));
  // What the fault left behind must not keep the same operation from working.
  TC_RETURN_IF_ERROR(Undisturbed(operation).status());
  TC_RETURN_IF_ERROR(invariants_->VerifyReplicas(RecoveryDeadline(), ModelOf(operation)));
  TC_RETURN_IF_ERROR(BackToNormal());
  TC_RETURN_IF_ERROR(invariants_->AwaitBaseline(RecoveryDeadline()));
  absl::FPrintF(options_.out, "     recovered in %.2f s; all held\n",
                absl::ToDoubleSeconds(SteadyNow() - recovery_began));
  return absl::OkStatus();
}

// A server must not end unless it was killed, or was a global store that no longer leads.
absl::Status Chaos::CheckOthersRun(const Fault& fault) {
  const bool killed = fault.kill && !fault.restart_at_once && fault.victim != Victim::kClient;
  const auto check = [&](Process& server, const std::string& name, std::optional<int> allowed) {
    const absl::StatusOr<int> code = server.Wait(SteadyNow());
    const bool may = !code.ok() || *code == allowed || (killed && *code == 128 + SIGKILL);
    return may ? absl::OkStatus() : absl::InternalError(absl::StrCat(name, " has ended with ", *code));
  };
  for (int i = 0; i < cluster_->global_stores(); ++i) {
    TC_RETURN_IF_ERROR(check(cluster_->global_store(i), absl::StrCat("global store ", i),
                             etcd_ == nullptr ? std::nullopt : std::optional(kLostItsLease)));
  }
  for (int node = 0; node < cluster_->daemons(); ++node) {
    TC_RETURN_IF_ERROR(check(cluster_->daemon(node), absl::StrCat("node-", node), std::nullopt));
  }
  return absl::OkStatus();
}

absl::Status Chaos::Restart() {
  if (dead_member_.has_value()) etcd_->Restart(*std::exchange(dead_member_, std::nullopt));
  for (int i = 0; i < cluster_->global_stores(); ++i) {
    if (!cluster_->global_store(i).running()) TC_RETURN_IF_ERROR(cluster_->RestartGlobalStore(i));
  }
  for (int node = 0; node < cluster_->daemons(); ++node) {
    if (!cluster_->daemon(node).running()) TC_RETURN_IF_ERROR(cluster_->RestartDaemon(node));
  }
  return absl::OkStatus();
}

absl::Status Chaos::Recover() {
  TC_RETURN_IF_ERROR(Restart());
  TC_RETURN_IF_ERROR(invariants_->AwaitWhole(RecoveryDeadline()));
  return cluster_->AwaitLeader(RecoveryDeadline());
}

// The state in which an operation finds what it needs, and nothing of what it is to make.
absl::Status Chaos::Prepare(const Operation& operation) {
  if (!operation.drop_base_replica) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(Address(0)));
  TC_ASSIGN_OR_RETURN(const auto replicas, admin->ListReplicas(Context(), base_artifact_));
  for (const v1::Replica& replica : replicas) {
    if (replica.location().kind() == v1::LOCATION_KIND_DISK) continue;
    // It may still be filling on behalf of a client that the fault before killed.
    TC_RETURN_IF_ERROR(invariants_->Await(0, RecoveryDeadline(), [&](const auto&) {
      return IgnoreNotFound(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
    }));
  }
  return absl::OkStatus();
}

// The base artifact in node 0's host memory and on its disk, and nothing else anywhere.
absl::Status Chaos::BackToNormal() {
  TC_ASSIGN_OR_RETURN(const auto client, client::Client::Connect({.daemon = Address(0)}));
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(Address(0)));
  // Forgotten before it is deleted: from then on the key may be missing.
  invariants_->Forget(kRoundKey);
  TC_RETURN_IF_ERROR(IgnoreNotFound(client->DeleteKey(Context(), kRoundKey, std::nullopt)));
  TC_ASSIGN_OR_RETURN(const auto artifacts, admin->ListArtifacts(Context(), false, absl::ZeroDuration()));
  for (const v1::Artifact& artifact : artifacts) {
    if (artifact.artifact_id() == base_artifact_) continue;
    TC_RETURN_IF_ERROR(IgnoreNotFound(admin->DeleteArtifact(Context(), artifact.artifact_id())));
  }
  TC_RETURN_IF_ERROR(client->Get(Context(), base_artifact_, {}).status());
  for (int node = 1; node < cluster_->daemons(); ++node) {
    TC_ASSIGN_OR_RETURN(const auto other, client::AdminClient::Connect(Address(node)));
    TC_ASSIGN_OR_RETURN(const auto replicas, other->ListReplicas(Context(), base_artifact_));
    for (const v1::Replica& replica : replicas) {
      const SteadyTime deadline = RecoveryDeadline();
      // A lease of a client that was just killed may still be on it.
      TC_RETURN_IF_ERROR(invariants_->Await(node, deadline, [&](const auto&) {
        return IgnoreNotFound(other->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
      }));
    }
  }
  for (int node = 0; node < cluster_->daemons(); ++node) {
    const uint32_t wanted = node == 0 ? kBaseReplicas : 0;
    TC_RETURN_IF_ERROR(invariants_->Await(node, RecoveryDeadline(), [&](const v1::GetStatusResponse& status) {
      if (status.replicas() == wanted) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(status.replicas(), " replicas, not ", wanted));
    }));
  }
  return absl::OkStatus();
}

std::string Chaos::Logs() const {
  if (directory_ == nullptr) return "";
  std::string logs;
  for (int i = 0; cluster_ != nullptr && i < cluster_->global_stores(); ++i) {
    absl::StrAppend(&logs, "\nglobal store ", i, "'s log ends:\n",
                    FileTail(cluster_->global_store_directory(i) + "/log", kLogLines));
  }
  for (int node = 0; node < options_.daemons; ++node) {
    absl::StrAppend(&logs, "\nnode ", node, "'s log ends:\n",
                    FileTail(absl::StrCat(directory_->path(), "/node-", node, "/log"), kLogLines));
  }
  return logs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenDevices() {
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> cuda = CreateCudaRuntime();
  if (!absl::IsUnavailable(cuda.status())) return cuda;
  return CreateFakeRuntime({.device_count = 1});
}

absl::Status RunChaos(const ChaosOptions& options) { return Chaos(options).Run(); }

}  // namespace tensorcast::chaos
