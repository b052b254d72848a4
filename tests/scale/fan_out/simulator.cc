#include "tests/scale/fan_out/simulator.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/steady_time.h"
#include "core/ingest/chunk_picker.h"
#include "core/ingest/progress_stall.h"
#include "core/ingest/receive_rate.h"
#include "core/replica/availability.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/source_rules.h"
#include "tests/scale/fan_out/network.h"

namespace tensorcast::fan_out {
namespace {

using global_store::Directory;
using global_store::GrantEnd;
using global_store::GrantOffer;
using global_store::NodeIdentity;

constexpr double kHeartbeat = 3;
constexpr double kStoreRetry = 0.5;  // after a call without an answer
constexpr int kFetchesAtOnce = 16;   // that a pull takes
constexpr double kLook = 0.05;       // ChunkPicker::kLookEvery
// As the daemon's source finder, which tries a source that gave nothing again after a pause, which doubles.
constexpr uint32_t kSourcesBesideHostmates = 4;
constexpr double kLookElsewhere = 0.25;  // while no source answers; each time twice as long
constexpr double kOvertakenAfter = 0.25;
constexpr double kFirstPause = 0.25;
constexpr int kTries = 3;
constexpr int kMaxStalls = 6;
constexpr char kBucket[] = "s3://bucket/";
constexpr int kObjectReads = 8;  // of an origin at once

class CountingSecrets final : public global_store::Secrets {
 public:
  std::string NewGrantId() override { return absl::StrFormat("grant-%08d", ++grants_); }
  std::string NewGrantKey() override { return std::string(32, 'k'); }

 private:
  int grants_ = 0;
};

// Of the processor's time, so that what else the machine does is not in it.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

SteadyTime At(double seconds) { return SteadyTime() + absl::Hours(1) + absl::Seconds(seconds); }

// What happens at a moment. Events are handled in the order of their times, and of their creation where the
// times are equal, so that a run is deterministic.
//
// A receiver's course: kArrive, kAsk -> kServe (at the store) -> kAnswer -> kConnected for each granted
// source. Of each chunk: kRequest -> kSent -> kReceived -> kCommit, then kAnnounce -> kAnnounced, which lets
// the receivers of this replica request the chunk. kLook comes every kLook seconds until the replica is whole
// or has failed.
enum class Kind : uint8_t {
  kArrive,     // a replica
  kCrash,      // a node
  kStop,       // a node
  kReport,     // a replica, to the store
  kAsk,        // a replica for sources
  kServe,      // the store, a call for a replica that arrived
  kAnswer,     // a replica, the store's answer to that
  kConnected,  // a pull
  kRequest,    // a pull's source, a chunk
  kSent,       // a pull's source: all of the chunk that it is sending
  kReceived,   // a pull's receiver, a chunk
  kCommit,     // a replica, a chunk
  kAnnounce,   // a replica: what is new
  kAnnounced,  // a replica's receivers
  kBroken,     // a pull's receiver
  kLook,       // a replica's picker, for what is overdue
  kHeartbeat,  // a node
  kTick,       // the store
  kShare,      // the network
};

// `id` is the replica, node or pull that the kind names; `what` is a chunk, a call, an answer or a count.
struct Event {
  double at = 0;
  uint64_t order = 0;
  Kind kind = Kind::kTick;
  int32_t id = 0;
  int64_t what = 0;
  // Reversed: std::priority_queue has the largest on top.
  bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

std::vector<global_store::SourceRule> RulesWithout(std::string_view name) {
  std::vector<global_store::SourceRule> rules;
  for (const global_store::SourceRule& rule : global_store::SourceRules()) {
    if (rule.name != name) rules.push_back(rule);
  }
  return rules;
}

class Simulator {
 public:
  explicit Simulator(const Plan& plan)
      : plan_(plan),
        chunks_(static_cast<uint32_t>((plan.image_bytes - 1) / plan.chunk_bytes + 1)),
        rules_(RulesWithout(plan.without)),
        directory_({.transfers = {.soft_grants_per_source = plan.upload_slots,
                                  .filling_lanes = {"ucx", "tcp"},
                                  .source_rules = rules_}},
                   &secrets_),
        given_(chunks_ * plan.images) {}

  RunResult Run();

 private:
  // One granted source of one receiver. A pull exists from the grant on, is in the picker from its connection
  // on, and stays in pulls_ after its end, where late events find it with `ended` set.
  struct Pull {
    int source = 0;  // a replica, like the receiver
    int receiver = 0;
    std::string grant_id;
    std::string replica_id;
    std::string lane;
    double granted = 0;
    int picked = -1;         // its index in the receiver's picker; -1: not connected yet
    bool spent = false;      // a part, of which the receiver has all; out of the picker
    bool gave = false;       // a chunk at least
    bool overtaken = false;  // a chunk was taken back from it, and it has given none since
    Network::Flow flow = 0;
    uint32_t share = 0;
    uint32_t shares = 1;
    bool whole = false;    // the source has every chunk
    bool outside = false;  // and is an object store
    bool ended = false;
    std::vector<uint32_t> asked;  // what the receiver waits for
    std::deque<uint32_t> queue;   // at the source; the first is being sent
    double left = 0;              // of the first's bytes
    double since = 0;             // `left` was true then
    uint64_t sending = 0;         // counts what makes an event of kSent void
  };
  struct Call {  // at the store
    int replica = 0;
    bool arrives = false;  // says first that it fills
    bool finishes = false;
    bool asks = false;
    global_store::GrantRequest request;
    std::vector<std::pair<std::string, GrantEnd>> ended;
  };
  // One image at one node, as its node sees it: as a receiver (picker, fed_by) and as a source (have, feeds).
  struct Replica {
    std::unique_ptr<ChunkPicker> picker;
    std::shared_ptr<Availability> have;  // as its receivers know it
    std::vector<uint32_t> fresh;         // committed, not yet announced
    std::vector<uint32_t> underway;      // announced, not yet heard of
    double announced = -1;               // when it did last
    bool announcing = false;
    std::vector<int> feeds;                // pulls, this one the source
    std::vector<int> fed_by;               // pulls, this one the receiver
    std::map<std::string, int> fruitless;  // tries in a row, by replica
    ProgressStall hostmates;
    ProgressStall sources;  // all of them
    int stalls = 0;
    double looked_elsewhere = 0;
    double look_elsewhere_after = kLookElsewhere;
    uint32_t beside_stalled = 0;                           // that the next request wants, at least
    std::vector<std::pair<std::string, GrantEnd>> unsaid;  // ended grants
    bool whole = false;
    bool failed = false;
    bool asking = false;
    bool ask_again = false;
    ReceiveRate rate;
    double look_at = kNever;  // when it asks for more
    double progress = 0;      // when it last got a chunk
    uint64_t fetched = 0;     // chunks, with repetition
  };
  struct Node {
    int host = 0;
    Network::Link from_place = Network::kNoLink;
    Network::Link tcp_up = Network::kNoLink;
    Network::Link tcp_down = Network::kNoLink;
    bool crashed = false;  // or stopped
    uint64_t sequence = 0;
  };

  static std::string NodeId(int node) { return absl::StrFormat("node-%05d", node); }
  std::string ArtifactId(int replica) const { return absl::StrCat("tc2:image-", replica % plan_.images); }
  static std::string ReplicaId(int replica) { return absl::StrFormat("replica-%05d", replica); }
  static int ReplicaOf(const std::string& id) { return std::stoi(id.substr(8)); }
  int NodeOf(int replica) const { return replica / plan_.images; }
  bool Crashed(int replica) const { return nodes_[NodeOf(replica)].crashed; }
  int HostOf(int replica) const { return nodes_[NodeOf(replica)].host; }
  int GroupOf(int replica) const { return plan_.nodes[NodeOf(replica)].group; }
  bool SameHost(int a, int b) const { return HostOf(a) == HostOf(b); }
  bool IsInUse(const Pull& pull) const { return pull.picked >= 0 && !pull.spent; }
  // No source, or only such as have no more to give.
  bool NeedsSource(const Replica& replica) const {
    return std::ranges::all_of(replica.fed_by, [this](int pull) { return pulls_[pull].spent; });
  }

  void Push(double at, Kind kind, int id, int64_t what = 0) {
    events_.push({.at = at, .order = ++order_, .kind = kind, .id = id, .what = what});
  }
  uint64_t BytesOf(uint32_t chunk) const {
    return std::min(plan_.chunk_bytes, plan_.image_bytes - chunk * plan_.chunk_bytes);
  }

  void SetUpHost(int node);
  void SetUp();
  void Handle(const Event& event);
  ReplicaInfo InfoOf(int replica, ReplicaState state) const;
  void UpdateReplica(int replica, ReplicaState state);

  // The receiver.
  void Arrive(int replica);
  void Ask(int replica);
  void TakeAnswer(int replica, const GrantOffer& offer);
  Network::Way WayOf(const Pull& pull) const;
  void AddPull(int replica, int source, Pull pull, double pause = 0);
  void Connect(int pull);
  void Fill(int pull);  // its window
  void FillAll(int replica);
  void Receive(int pull, uint32_t chunk);
  void Commit(int replica, uint32_t chunk);
  void Look(int replica);
  void WatchHostmates(int replica);
  void WatchSources(int replica);
  void AskBeside(int replica, uint32_t wanted);
  void EndSpent(int replica);
  void EndPull(int pull, GrantEnd end);
  void Break(int pull);
  void Finish(int replica);
  // The source.
  void TakeRequest(int pull, uint32_t chunk);
  void SendNext(int pull);
  void Progress(Pull& pull);
  void Predict(int pull);
  void Sent(int pull);
  void Announce(int replica);
  void Announced(int replica);
  void Crash(int node, bool stops);
  // The store.
  void Serve(int64_t call);
  bool StoreIsAway() const { return now_ >= plan_.store_away_from && now_ < plan_.store_away_until; }
  void Share();

  const Plan& plan_;
  const uint32_t chunks_;
  const std::vector<global_store::SourceRule> rules_;
  double now_ = 0;
  double step_end_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Event> events_;
  CountingSecrets secrets_;
  Directory directory_;
  Network network_;
  std::vector<std::pair<Network::Link, Network::Link>> groups_;
  struct Host {
    Network::Link up;
    Network::Link down;
    Network::Link within;  // kNoLink: no limit
  };
  std::vector<Host> hosts_;
  std::vector<Node> nodes_;
  std::vector<Replica> replicas_;  // as in the result
  std::deque<Pull> pulls_;
  std::vector<int> pull_of_flow_;
  std::deque<Call> calls_;
  std::vector<std::optional<GrantOffer>> answers_;
  // When the store has served all calls so far. Calls are served one after another.
  double store_free_ = 0;
  int unfinished_ = 0;
  std::vector<bool> given_;  // chunks, by the nodes that crash when they have given each
  uint32_t given_count_ = 0;
  RunResult result_;
  double directory_seconds_ = 0;
  uint64_t grant_requests_ = 0;
};

ReplicaInfo Simulator::InfoOf(int replica, ReplicaState state) const {
  const NodePlan& planned = plan_.nodes[NodeOf(replica)];
  return {.id = ReplicaId(replica),
          .artifact_id = ArtifactId(replica),
          .node_id = NodeId(NodeOf(replica)),
          .location = {.kind = planned.has_images ? planned.place : plan_.destination},
          .state = state,
          .image_bytes = plan_.image_bytes,
          .chunks_total = chunks_,
          .chunks_present = replicas_[replica].have->count()};
}

void Simulator::UpdateReplica(int replica, ReplicaState state) {
  const int node = NodeOf(replica);
  const auto updated = directory_.UpdateReplicas({NodeId(node), 1}, ++nodes_[node].sequence,
                                                 {InfoOf(replica, state)}, At(now_));
  CHECK(updated.ok() || absl::IsNotFound(updated.status())) << updated.status();
}

void Simulator::SetUpHost(int node) {
  const NodePlan& planned = plan_.nodes[node];
  Node& state = nodes_[node];
  if (planned.place_rate > 0) state.from_place = network_.AddLink(planned.place_rate);
  if (plan_.tcp_rate > 0) {
    state.tcp_up = network_.AddLink(plan_.tcp_rate);
    state.tcp_down = network_.AddLink(plan_.tcp_rate);
  }
  for (int other = 0; other < node && planned.host >= 0; ++other) {
    if (plan_.nodes[other].host != planned.host) continue;
    state.host = nodes_[other].host;
    return;
  }
  state.host = static_cast<int>(hosts_.size());
  hosts_.push_back({.up = network_.AddLink(planned.rate),
                    .down = network_.AddLink(planned.rate),
                    .within = plan_.host_rate > 0 ? network_.AddLink(plan_.host_rate) : Network::kNoLink});
}

void Simulator::SetUp() {
  global_store::DurableFacts facts;
  for (int image = 0; image < plan_.images; ++image) {
    global_store::ArtifactRecord artifact{
        .artifact_id = ArtifactId(image), .image_bytes = plan_.image_bytes, .chunk_bytes = plan_.chunk_bytes};
    if (plan_.nodes.front().is_object_store) {
      artifact.origins = {{.node_id = NodeId(0), .objects = {{.uri = absl::StrCat(kBucket, image)}}}};
    }
    facts.artifacts.push_back(std::move(artifact));
  }
  directory_.Apply(facts, At(0));
  nodes_.resize(plan_.nodes.size());
  replicas_.resize(plan_.nodes.size() * plan_.images);
  result_.replicas.resize(replicas_.size());
  for (int node = 0; node < static_cast<int>(nodes_.size()); ++node) {
    const NodePlan& planned = plan_.nodes[node];
    Node& state = nodes_[node];
    SetUpHost(node);
    while (plan_.group_rate > 0 && static_cast<int>(groups_.size()) <= planned.group) {
      groups_.emplace_back(network_.AddLink(plan_.group_rate), network_.AddLink(plan_.group_rate));
    }
    global_store::NodeFacts about{.node_id = NodeId(node),
                                  .name = NodeId(node),
                                  .incarnation = 1,
                                  .host_id = absl::StrCat("host-", state.host),
                                  .grpc_address = NodeId(node),
                                  .lanes = planned.lanes};
    if (plan_.destination == LocationKind::kGpu) {
      about.handle_socket = absl::StrCat("/", NodeId(node));
      about.devices = {{.ordinal = 0}};
    }
    if (planned.says_rate) about.labels["link_mbit"] = absl::StrCat(std::llround(planned.rate * 8e-6));
    if (planned.group >= 0 && !plan_.group_label.empty()) {
      about.labels[plan_.group_label] = absl::StrCat("g", planned.group);
    }
    if (!planned.is_object_store) CHECK_OK(directory_.RegisterNode(about, {}, At(0)).status());
    std::vector<ReplicaInfo> inventory;
    for (int image = 0; image < plan_.images; ++image) {
      const int replica = node * plan_.images + image;
      replicas_[replica].have = std::make_shared<Availability>(plan_.image_bytes, plan_.chunk_bytes);
      replicas_[replica].whole = planned.has_images && planned.part == 1;
      std::mt19937_64 random(plan_.seed * 1'000'003 + replica);
      for (uint32_t chunk = 0; chunk < chunks_ && planned.part < 1; ++chunk) {
        if (static_cast<double>(random() % 1000) < planned.part * 1000) replicas_[replica].have->Add(chunk);
      }
      if (planned.is_object_store) {
        replicas_[replica].whole = true;
      } else if (planned.has_images) {
        inventory.push_back(
            InfoOf(replica, planned.part < 1 ? ReplicaState::kPartial : ReplicaState::kReady));
      } else {
        ++unfinished_;
        Push(planned.arrives, Kind::kArrive, replica);
      }
    }
    if (planned.is_object_store) continue;
    CHECK_OK(directory_.ReconcileInventory({NodeId(node), 1}, ++state.sequence, inventory, At(0)).status());
    if (planned.drains) CHECK_OK(directory_.DrainNode(NodeId(node), true));
    if (planned.crashes < kNever) Push(planned.crashes, Kind::kCrash, node);
    if (planned.stops < kNever) Push(planned.stops, Kind::kStop, node);
    Push(kHeartbeat * (node + 1) / static_cast<double>(nodes_.size()), Kind::kHeartbeat, node);
  }
  Push(0, Kind::kShare, 0);
  Push(1, Kind::kTick, 0);
}

// The queue never becomes empty: heartbeats, ticks and shares repeat themselves. A run ends when each
// receiver is whole, has failed or has crashed.
RunResult Simulator::Run() {
  SetUp();
  while (unfinished_ > 0) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    Handle(event);
  }
  for (int replica = 0; replica < static_cast<int>(replicas_.size()); ++replica) {
    const double took = result_.replicas[replica].took;
    if (took < kNever) result_.last = std::max(result_.last, plan_.nodes[NodeOf(replica)].arrives + took);
  }
  result_.directory_mean_us =
      grant_requests_ == 0 ? 0 : directory_seconds_ / static_cast<double>(grant_requests_) * 1e6;
  return std::move(result_);
}

void Simulator::Handle(const Event& event) {
  switch (event.kind) {
    case Kind::kArrive:
      return Arrive(event.id);
    case Kind::kCrash:
      return Crash(event.id, /*stops=*/false);
    case Kind::kStop:
      return Crash(event.id, /*stops=*/true);
    case Kind::kReport:
      calls_.push_back({.replica = event.id, .arrives = true});
      return Serve(static_cast<int64_t>(calls_.size()) - 1);
    case Kind::kAsk:
      if (event.at < replicas_[event.id].look_at && event.what == 0) return;  // asked meanwhile
      return Ask(event.id);
    case Kind::kServe:
      return Serve(event.what);
    case Kind::kAnswer:
      return TakeAnswer(event.id, *std::exchange(answers_[event.what], std::nullopt));
    case Kind::kConnected:
      return Connect(event.id);
    case Kind::kRequest:
      return TakeRequest(event.id, static_cast<uint32_t>(event.what));
    case Kind::kSent:
      if (pulls_[event.id].sending == static_cast<uint64_t>(event.what)) Sent(event.id);
      return;
    case Kind::kReceived:
      return Receive(event.id, static_cast<uint32_t>(event.what));
    case Kind::kCommit:
      return Commit(event.id, static_cast<uint32_t>(event.what));
    case Kind::kAnnounce:
      return Announce(event.id);
    case Kind::kAnnounced:
      return Announced(event.id);
    case Kind::kBroken:
      return Break(event.id);
    case Kind::kLook:
      return Look(event.id);
    case Kind::kHeartbeat: {
      Node& node = nodes_[event.id];
      if (node.crashed || plan_.nodes[event.id].is_object_store) return;
      Push(now_ + kHeartbeat, Kind::kHeartbeat, event.id);
      if (StoreIsAway()) return;
      std::vector<std::string> active;
      for (int image = 0; image < plan_.images; ++image) {
        for (const int pull : replicas_[event.id * plan_.images + image].fed_by) {
          if (!pulls_[pull].outside) active.push_back(pulls_[pull].grant_id);
        }
      }
      CHECK_OK(directory_.Heartbeat({NodeId(event.id), 1}, {}, active, node.sequence, At(now_)).status());
      return;
    }
    case Kind::kTick:
      Push(now_ + 1, Kind::kTick, 0);
      if (!StoreIsAway()) directory_.Tick(At(now_));
      // The server counts and logs these grants. Here they would only pile up.
      directory_.transfers().grants().TakeEnded();
      return;
    case Kind::kShare:
      return Share();
  }
}

// ---- The receiver ----

void Simulator::Arrive(int replica) {
  Replica& arriving = replicas_[replica];
  if (Crashed(replica)) return;
  arriving.picker = std::make_unique<ChunkPicker>(chunks_, plan_.seed * 1'000'003 + replica);
  arriving.progress = now_;
  Push(now_ + kLook, Kind::kLook, replica);
  if (plan_.report > 0) Push(now_ + plan_.report, Kind::kReport, replica);
  Ask(replica);
}

// One call at a time; what comes up meanwhile is asked for by the next.
void Simulator::Ask(int replica) {
  Replica& asking = replicas_[replica];
  if (Crashed(replica) || asking.whole || asking.failed) return;
  asking.look_at = kNever;
  if (asking.asking) {
    asking.ask_again = true;
    return;
  }
  asking.asking = true;
  Call call{.replica = replica,
            .arrives = plan_.report == 0 && result_.replicas[replica].requests == 0,
            .asks = true,
            .ended = std::exchange(asking.unsaid, {})};
  call.request.receiver = {NodeId(NodeOf(replica)), 1};
  call.request.artifact_id = ArtifactId(replica);
  call.request.destination = {.kind = plan_.destination};
  const bool needed = NeedsSource(asking);
  for (const auto& entry : asking.fruitless) {
    const std::string& replica_id = entry.first;
    const int fruitless = entry.second;
    // A source that gave nothing is excluded for good after kTries, and as long as another source is left.
    // Else the store may grant it again, as a slow one.
    const bool excluded = fruitless >= kTries || (fruitless > 0 && !needed);
    const bool held =
        std::ranges::any_of(asking.fed_by, [&](int pull) { return pulls_[pull].replica_id == replica_id; });
    if (fruitless == 0 || held) continue;
    (excluded ? call.request.excluded_replicas : call.request.slow_replicas).push_back(replica_id);
  }
  call.request.sources = plan_.sources;
  call.request.received_mbit = asking.rate.MbitOf(result_.replicas[replica].wire_bytes, At(now_));
  const uint32_t beside = std::exchange(asking.beside_stalled, 0);
  const bool stalled = beside > 0;
  if (stalled) {
    const auto held = std::ranges::count_if(asking.fed_by, [&](int pull) { return !pulls_[pull].outside; });
    // The sources held so far bring nothing. The request asks for others beside them, and names the held ones
    // as slow, so that the store prefers others.
    call.request.sources = std::max(plan_.sources, static_cast<uint32_t>(held) + beside);
  }
  for (const int pull : asking.fed_by) {
    if (pulls_[pull].outside) {
      call.request.held_origin = absl::StrCat(kBucket, replica % plan_.images);
      continue;
    }
    call.request.held_grants.push_back(pulls_[pull].grant_id);
    if (stalled) call.request.slow_replicas.push_back(pulls_[pull].replica_id);
  }
  ++result_.replicas[replica].requests;
  calls_.push_back(std::move(call));
  Push(now_ + plan_.rpc / 2, Kind::kServe, replica, static_cast<int64_t>(calls_.size()) - 1);
}

void Simulator::TakeAnswer(int replica, const GrantOffer& offer) {
  Replica& asked = replicas_[replica];
  asked.asking = false;
  if (Crashed(replica) || asked.whole || asked.failed) return;
  const auto tries = [&](const global_store::OfferedGrant& granted) {
    const auto tried = asked.fruitless.find(granted.grant.replica_id);
    return tried == asked.fruitless.end() ? 0 : tried->second;
  };
  const bool fresh =
      std::ranges::any_of(offer.granted, [&](const auto& granted) { return tries(granted) == 0; });
  for (const global_store::OfferedGrant& granted : offer.granted) {
    // One that failed before is tried at once only beside others.
    const double pause = fresh || tries(granted) == 0 ? 0 : kFirstPause * std::exp2(tries(granted) - 1);
    AddPull(replica, ReplicaOf(granted.grant.replica_id),
            {.grant_id = granted.grant.grant_id,
             .replica_id = granted.grant.replica_id,
             .lane = granted.grant.lane,
             .share = granted.share,
             .shares = granted.shares,
             .whole = granted.replica.state == ReplicaState::kReady},
            pause);
  }
  if (offer.shared.has_value()) {
    AddPull(replica, replica % plan_.images,
            {.share = offer.shared->share, .shares = offer.shared->shares, .whole = true, .outside = true});
  }
  const double look_again = absl::ToDoubleSeconds(offer.look_again);
  const double retry = absl::ToDoubleSeconds(offer.retry_after);
  double next = look_again;
  if (asked.fed_by.empty()) next = retry > 0 ? retry : kStoreRetry;
  if (std::exchange(asked.ask_again, false)) next = 0;
  if (next < kNever) {
    asked.look_at = now_ + next;
    Push(asked.look_at, Kind::kAsk, replica);
  }
}

Network::Way Simulator::WayOf(const Pull& pull) const {
  Network::Way way;
  way.fill(Network::kNoLink);
  size_t links = 0;
  const auto add = [&](Network::Link link) {
    if (link == Network::kNoLink) return;
    CHECK_LT(links, way.size());
    way[links++] = link;
  };
  const Host& from_host = hosts_[HostOf(pull.source)];
  const int from = GroupOf(pull.source);
  const int to = GroupOf(pull.receiver);
  add(nodes_[NodeOf(pull.source)].from_place);
  if (SameHost(pull.source, pull.receiver)) {
    add(from_host.within);
    return way;
  }
  add(from_host.up);
  add(hosts_[HostOf(pull.receiver)].down);
  if (plan_.group_rate > 0 && from != to) {
    add(groups_[from].first);
    add(groups_[to].second);
  }
  if (pull.lane == "tcp") {
    add(nodes_[NodeOf(pull.source)].tcp_up);
    add(nodes_[NodeOf(pull.receiver)].tcp_down);
  }
  return way;
}

void Simulator::AddPull(int replica, int source, Pull pull, double pause) {
  const int index = static_cast<int>(pulls_.size());
  Replica& receiver = replicas_[replica];
  receiver.rate.Begin(At(now_));
  if (receiver.fed_by.empty()) {
    receiver.looked_elsewhere = now_;
    receiver.look_elsewhere_after = kLookElsewhere;
  }
  pull.source = source;
  pull.receiver = replica;
  pull.granted = now_ + pause;
  pull.flow = network_.AddFlow(WayOf(pull));
  pulls_.push_back(std::move(pull));
  pull_of_flow_.push_back(index);
  receiver.fed_by.push_back(index);
  replicas_[source].feeds.push_back(index);
  Push(now_ + pause + plan_.connect, Kind::kConnected, index);
}

void Simulator::Connect(int index) {
  Pull& pull = pulls_[index];
  if (pull.ended) return;
  if (Crashed(pull.source)) {
    // A connection to a crashed node is refused. One to a node that stopped hangs, until the receiver gives
    // it up.
    if (plan_.nodes[NodeOf(pull.source)].stops == kNever) Break(index);
    return;
  }
  ChunkPicker::Source source{.max_fetches = pull.outside ? kObjectReads : kFetchesAtOnce,
                             .outside = pull.outside,
                             .share = pull.share,
                             .shares = pull.shares};
  if (!pull.whole) source.availability = replicas_[pull.source].have;
  pull.picked = replicas_[pull.receiver].picker->AddSource(std::move(source));
  Fill(index);
}

void Simulator::Fill(int index) {
  Pull& pull = pulls_[index];
  if (pull.ended || !IsInUse(pull)) return;
  ChunkPicker& picker = *replicas_[pull.receiver].picker;
  while (const auto taken = picker.Take(pull.picked, At(now_))) {
    result_.replicas[pull.receiver].refetched += taken->again ? 1 : 0;
    pull.asked.push_back(taken->chunk);
    Push(now_ + plan_.latency, Kind::kRequest, index, taken->chunk);
  }
}

void Simulator::FillAll(int replica) {
  for (const int pull : replicas_[replica].fed_by) Fill(pull);
}

void Simulator::Receive(int index, uint32_t chunk) {
  Pull& pull = pulls_[index];
  Replica& receiver = replicas_[pull.receiver];
  if (pull.ended || Crashed(pull.receiver)) return;
  receiver.picker->Fetched(pull.picked, chunk, At(now_));
  std::erase(pull.asked, chunk);
  receiver.progress = now_;
  ++receiver.fetched;
  pull.gave = true;
  pull.overtaken = false;
  result_.replicas[pull.receiver].received_bytes += BytesOf(chunk);
  if (!SameHost(pull.source, pull.receiver)) result_.replicas[pull.receiver].wire_bytes += BytesOf(chunk);
  if (GroupOf(pull.source) != GroupOf(pull.receiver)) {
    result_.replicas[pull.receiver].group_bytes += BytesOf(chunk);
  }
  // The pull may request the next chunk while this one is verified.
  Push(now_ + plan_.verify, Kind::kCommit, pull.receiver, chunk);
  Fill(index);
}

void Simulator::Commit(int replica, uint32_t chunk) {
  Replica& committing = replicas_[replica];
  if (Crashed(replica)) return;
  committing.picker->Done(chunk);
  committing.fresh.push_back(chunk);
  if (!committing.announcing) {
    committing.announcing = true;
    Push(std::max(now_, committing.announced + plan_.have_interval), Kind::kAnnounce, replica);
  }
  if (committing.picker->all_done()) Finish(replica);
}

void Simulator::Finish(int replica) {
  Replica& done = replicas_[replica];
  done.whole = true;
  result_.replicas[replica].took = now_ - plan_.nodes[NodeOf(replica)].arrives;
  --unfinished_;
  // A source that gave nothing of late is reported as overtaken, but only beside a source that gave.
  const auto is_overtaken = [&](int pull) {
    const bool hangs = pulls_[pull].picked < 0 && Crashed(pulls_[pull].source);
    return hangs || pulls_[pull].overtaken;
  };
  const bool all = std::ranges::all_of(done.fed_by, is_overtaken);
  while (!done.fed_by.empty()) {
    const int pull = done.fed_by.back();
    EndPull(pull, is_overtaken(pull) && !all ? GrantEnd::kOvertaken : GrantEnd::kSucceeded);
  }
  calls_.push_back({.replica = replica, .finishes = true, .ended = std::exchange(done.unsaid, {})});
  Push(now_ + plan_.rpc / 2, Kind::kServe, replica, static_cast<int64_t>(calls_.size()) - 1);
}

void Simulator::Look(int replica) {
  Replica& looking = replicas_[replica];
  if (Crashed(replica) || looking.whole || looking.failed) return;
  if (now_ - looking.progress > plan_.peer_timeout) {
    looking.failed = result_.replicas[replica].failed = true;
    --unfinished_;
    while (!looking.fed_by.empty()) EndPull(looking.fed_by.back(), GrantEnd::kFailed);
    return;
  }
  Push(now_ + kLook, Kind::kLook, replica);
  WatchHostmates(replica);
  WatchSources(replica);
  EndSpent(replica);
  const std::vector<ChunkPicker::Fetch> overdue = looking.picker->Overdue(At(now_));
  for (const ChunkPicker::Fetch& fetch : overdue) {
    const auto index =
        std::ranges::find(looking.fed_by, fetch.source, [&](int pull) { return pulls_[pull].picked; });
    CHECK(index != looking.fed_by.end());
    Pull& pull = pulls_[*index];
    const auto queued = std::ranges::find(pull.queue, fetch.chunk);
    if (queued == pull.queue.end()) continue;  // the request or the chunk is on its way
    ++result_.replicas[replica].taken_back;
    pull.overtaken = true;
    looking.picker->PutBack(fetch.source, fetch.chunk);
    std::erase(pull.asked, fetch.chunk);
    const bool first = queued == pull.queue.begin();
    pull.queue.erase(queued);
    if (first) SendNext(*index);
  }
  FillAll(replica);
}

// Where all sources are hostmates that are filling themselves, their counts are the progress to watch: this
// receiver can only be as fast as they are. When they stall, it asks for sources beside them.
void Simulator::WatchHostmates(int replica) {
  Replica& watching = replicas_[replica];
  uint64_t chunks = 0;
  bool only_these = false;
  for (const int index : watching.fed_by) {
    const Pull& pull = pulls_[index];
    if (!IsInUse(pull)) continue;
    const Availability& have = *replicas_[pull.source].have;
    only_these = SameHost(pull.source, replica) && !pull.whole && !have.complete();
    if (!only_these) break;
    chunks += have.count();
  }
  if (!only_these) return watching.hostmates.Reset();
  watching.hostmates.Note(chunks, At(now_));
  if (watching.hostmates.TakeStall(At(now_))) AskBeside(replica, kSourcesBesideHostmates);
}

void Simulator::AskBeside(int replica, uint32_t wanted) {
  replicas_[replica].beside_stalled = wanted;
  Ask(replica);
}

// None answers, some answer and others do not, or nothing comes from those that do.
void Simulator::WatchSources(int replica) {
  Replica& watching = replicas_[replica];
  bool in_use = false;
  bool under_way = false;
  for (const int index : watching.fed_by) {
    in_use |= IsInUse(pulls_[index]);
    under_way |= !pulls_[index].asked.empty();
  }
  const bool wants_more = watching.fed_by.size() < plan_.sources;
  if (!in_use && !NeedsSource(watching) &&
      now_ - watching.looked_elsewhere >= watching.look_elsewhere_after) {
    watching.looked_elsewhere = now_;
    watching.look_elsewhere_after *= 2;
    if (wants_more) AskBeside(replica, 1);
  }
  if (!under_way) {
    watching.sources.Reset();
  } else {
    watching.sources.Note(watching.fetched, At(now_));
    if (watching.sources.TakeStall(At(now_)) && wants_more && watching.stalls < kMaxStalls) {
      ++watching.stalls;
      AskBeside(replica, 1);
    }
  }
  const auto silent = [&](int index) {
    return pulls_[index].picked < 0 && now_ - pulls_[index].granted > kOvertakenAfter;
  };
  while (in_use) {
    const auto overtaken = std::ranges::find_if(watching.fed_by, silent);
    if (overtaken == watching.fed_by.end()) return;
    ++watching.fruitless[pulls_[*overtaken].replica_id];
    EndPull(*overtaken, GrantEnd::kOvertaken);
    Ask(replica);
  }
}

// Takes parts out of the picker of which the receiver has every chunk. Their grants stay held, so the store
// grants other sources.
void Simulator::EndSpent(int replica) {
  Replica& ending = replicas_[replica];
  bool any = false;
  for (const int index : ending.fed_by) {
    Pull& pull = pulls_[index];
    const bool is_part = plan_.nodes[NodeOf(pull.source)].part < 1;
    if (!is_part || !IsInUse(pull) || !pull.asked.empty() || !ending.picker->IsSpent(pull.picked)) continue;
    ending.picker->RemoveSource(pull.picked);
    any = pull.spent = true;
  }
  if (any && NeedsSource(ending)) Ask(replica);
}

// The pull's ends forget it.
void Simulator::EndPull(int index, GrantEnd end) {
  Pull& pull = pulls_[index];
  if (pull.ended) return;
  pull.ended = true;
  ++pull.sending;
  network_.Stop(pull.flow);
  std::erase(replicas_[pull.source].feeds, index);
  std::erase(replicas_[pull.receiver].fed_by, index);
  if (!pull.outside) replicas_[pull.receiver].unsaid.emplace_back(pull.grant_id, end);
}

void Simulator::Break(int index) {
  Pull& pull = pulls_[index];
  Replica& receiver = replicas_[pull.receiver];
  if (pull.ended || Crashed(pull.receiver)) return;
  EndPull(index, GrantEnd::kFailed);
  int& fruitless = receiver.fruitless[pull.replica_id];
  fruitless = pull.gave ? 1 : fruitless + 1;
  if (IsInUse(pull)) {
    for (const uint32_t chunk : pull.asked) receiver.picker->PutBack(pull.picked, chunk);
    receiver.picker->RemoveSource(pull.picked);
  }
  FillAll(pull.receiver);
  Ask(pull.receiver);
}

// ---- The source ----

// A pull sends its requested chunks one after another, over one flow that runs while the queue is not empty.
void Simulator::TakeRequest(int index, uint32_t chunk) {
  Pull& pull = pulls_[index];
  if (pull.ended) return;
  pull.queue.push_back(chunk);
  // A source that stopped still takes requests, and answers none. The receiver's picker finds them overdue.
  if (pull.queue.size() > 1 || Crashed(pull.source)) return;
  network_.Start(pull.flow);
  SendNext(index);
}

void Simulator::SendNext(int index) {
  Pull& pull = pulls_[index];
  if (pull.queue.empty()) {
    ++pull.sending;
    network_.Stop(pull.flow);
    return;
  }
  if (Crashed(pull.source)) return;  // it stopped
  pull.left = static_cast<double>(BytesOf(pull.queue.front()));
  pull.since = now_;
  Predict(index);
}

void Simulator::Progress(Pull& pull) {
  pull.left -= network_.rate(pull.flow) * (now_ - pull.since);
  pull.since = now_;
}

// When it has sent its chunk, if the rate stays until then, which it does within a step.
void Simulator::Predict(int index) {
  Pull& pull = pulls_[index];
  const uint64_t sending = ++pull.sending;
  const double rate = network_.rate(pull.flow);
  if (rate <= 0) return;
  const double at = now_ + std::max(pull.left, 0.0) / rate;
  // Later than the step's end the rate may be another: Share predicts again then.
  if (at < step_end_) Push(at, Kind::kSent, index, static_cast<int64_t>(sending));
}

void Simulator::Sent(int index) {
  Pull& pull = pulls_[index];
  const uint32_t chunk = pull.queue.front();
  pull.queue.pop_front();
  result_.replicas[pull.source].given_bytes += BytesOf(chunk);
  Push(now_ + plan_.latency, Kind::kReceived, index, chunk);
  SendNext(index);
  const uint32_t of_image = (pull.source % plan_.images) * chunks_;
  if (!plan_.nodes[NodeOf(pull.source)].crashes_when_given || given_[of_image + chunk]) return;
  given_[of_image + chunk] = true;
  if (++given_count_ == given_.size()) Push(now_ + 2 * plan_.latency, Kind::kCrash, NodeOf(pull.source));
}

void Simulator::Share() {
  step_end_ = now_ + plan_.step;
  Push(step_end_, Kind::kShare, 0);
  // First what each flow has sent at its old rate, then the new rates, then the predictions from them.
  for (const Network::Flow flow : network_.running()) Progress(pulls_[pull_of_flow_[flow]]);
  network_.Share();
  for (const Network::Flow flow : network_.running()) Predict(pull_of_flow_[flow]);
}

void Simulator::Announce(int replica) {
  Replica& announcing = replicas_[replica];
  announcing.announcing = false;
  announcing.announced = now_;
  if (Crashed(replica)) return;
  announcing.underway.insert(announcing.underway.end(), announcing.fresh.begin(), announcing.fresh.end());
  announcing.fresh.clear();
  Push(now_ + plan_.latency, Kind::kAnnounced, replica);
}

void Simulator::Announced(int replica) {
  Replica& announcing = replicas_[replica];
  for (const uint32_t chunk : announcing.underway) announcing.have->Add(chunk);
  announcing.underway.clear();
  for (const int pull : announcing.feeds) Fill(pull);
}

void Simulator::Crash(int node, bool stops) {
  Node& crashed = nodes_[node];
  if (crashed.crashed) return;
  crashed.crashed = true;
  for (int image = 0; image < plan_.images; ++image) {
    Replica& replica = replicas_[node * plan_.images + image];
    const bool receiving = !replica.whole && !replica.failed;
    unfinished_ -= receiving ? 1 : 0;
    // The pulls that fed the node end here. Those that it fed break at their receivers after the latency, and
    // hang if the node only stopped.
    while (!replica.fed_by.empty()) EndPull(replica.fed_by.back(), GrantEnd::kFailed);
    for (const int pull : replica.feeds) {
      ++pulls_[pull].sending;
      network_.Stop(pulls_[pull].flow);
      if (stops) continue;
      pulls_[pull].queue.clear();
      Push(now_ + plan_.latency, Kind::kBroken, pull);
    }
  }
}

// ---- The store ----

void Simulator::Serve(int64_t index) {
  Call& call = calls_[index];
  if (StoreIsAway()) {
    // The store does not answer: it is asked again, with the same request.
    Push(now_ + kStoreRetry, Kind::kServe, call.replica, index);
    return;
  }
  store_free_ = std::max(store_free_, now_) + plan_.store_work;
  ++result_.store_calls;
  if (Crashed(call.replica)) return;
  const NodeIdentity identity{NodeId(NodeOf(call.replica)), 1};
  for (const auto& [grant_id, end] : call.ended) {
    CHECK_OK(directory_.transfers().CompleteGrant(identity, grant_id, end, false, At(now_)));
  }
  if (call.arrives) UpdateReplica(call.replica, ReplicaState::kFilling);
  if (call.finishes) UpdateReplica(call.replica, ReplicaState::kReady);
  if (!call.asks) return;
  const double begin = ThreadSeconds();
  const auto offer = directory_.transfers().RequestGrant(call.request, At(now_));
  const double took = ThreadSeconds() - begin;
  ++grant_requests_;
  directory_seconds_ += took;
  result_.directory_worst_us = std::max(result_.directory_worst_us, took * 1e6);
  CHECK_OK(offer.status());
  // The event carries the answer's index. The answer is moved out when the event is handled.
  answers_.push_back(*offer);
  call.request = {};
  Push(store_free_ + plan_.rpc / 2, Kind::kAnswer, call.replica, static_cast<int64_t>(answers_.size()) - 1);
}

}  // namespace

RunResult Simulate(const Plan& plan) { return Simulator(plan).Run(); }

}  // namespace tensorcast::fan_out
