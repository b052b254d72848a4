#include "core/broadcast/wide_broadcasts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/layout.h"
#include "core/broadcast/unsent_chunks.h"
#include "core/replicas/replica_lease.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast {

// One group of GPUs of several nodes, as this node sees it: its GPUs, and the thread that runs it from Begin
// to kOver. `groups_` owns it; a membership holds it, too.
struct WideBroadcasts::Group {
  explicit Group(WideGroupPlan what) : plan(std::move(what)) {}

  const WideGroupPlan plan;
  const Cancellation cancellation;  // when a member leaves, or all is to end
  struct Member {
    BroadcastReceiver receiver;
    std::shared_ptr<Availability> arrived;
    bool is_root = false;
  };
  // The owner's mutex guards these. Once it does not gather any more, the members stay as they are.
  std::map<Location, Member> members;
  State state = State::kGathering;
  bool left = false;       // a member
  SourceInfo source = {};  // from kBroadcasting on
  // Its own thread's, but for Stop of `unsent`, which is there before it broadcasts.
  std::shared_ptr<ReplicaLease> root;  // where it is here
  std::optional<UnsentChunks> unsent;
  std::optional<ImageLayout> layout;
  std::thread thread;
};

void WideBroadcasts::Stop() {
  std::list<std::shared_ptr<Group>> groups;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    groups.swap(groups_);
  }
  // Without the lock: Leave waits for the group's thread, which needs the lock.
  for (const std::shared_ptr<Group>& group : groups) {
    Leave(*group);
    group->thread.join();
  }
}

// The thread begins to gather at once, so that the time for it (forms_until) runs whether an ingest joins or
// not.
void WideBroadcasts::Begin(const WideGroupPlan& plan) {
  auto group = std::make_shared<Group>(plan);
  // A group's thread cannot join itself, so those that ended are joined here, without the lock.
  std::list<std::shared_ptr<Group>> over;
  absl::Status started;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    for (auto it = groups_.begin(); it != groups_.end();) {
      const auto next = std::next(it);
      if ((*it)->state == State::kOver) over.splice(over.end(), groups_, it);
      it = next;
    }
    try {
      group->thread = std::thread([this, started = group.get()] { Run(*started); });
      groups_.push_back(group);
    } catch (const std::system_error& error) {
      LOG(WARNING)
          << "broadcast " << plan.artifact_id << " between nodes: no thread can be started (" << error.what()
          << "), so the GPUs of this node pull the artifact; raise the limit of threads (`ulimit -u`)";
      started = absl::ResourceExhaustedError(absl::StrCat("broadcast ", plan.artifact_id,
                                                          ": no thread can be started (", error.what(),
                                                          "); raise the limit of threads (`ulimit -u`)"));
    }
  }
  for (const std::shared_ptr<Group>& ended : over) ended->thread.join();
  // Without the lock, since this is a call. Untold, the other nodes would wait for this one until
  // forms_until.
  if (!started.ok()) plan.meeting->GiveUp(plan, started);
}

std::shared_ptr<WideBroadcasts::Group> WideBroadcasts::FindGathering(const BroadcastReceiver& receiver) {
  for (const std::shared_ptr<Group>& group : groups_) {
    const WideGroupPlan& plan = group->plan;
    // One ingest for each location: a second one goes on without this group.
    if (group->state == State::kGathering && plan.artifact_id == receiver.artifact_id &&
        std::ranges::find(plan.ranks, receiver.location, &WideGroupPlan::Rank::location) !=
            plan.ranks.end() &&
        !group->members.contains(receiver.location)) {
      return group;
    }
  }
  return nullptr;
}

// The ingest of a receiver waits here until the group broadcasts, is over, or finds that this replica is its
// root. A member cannot take its place back by itself: where the wait ends early, the whole group is left.
std::optional<BroadcastMember> WideBroadcasts::Join(const RequestContext& context,
                                                    const BroadcastReceiver& receiver,
                                                    const WaitObserver& on_wait) {
  const absl::StatusOr<std::shared_ptr<const Manifest>> manifest = table_->FindManifest(receiver.artifact_id);
  if (!manifest.ok()) return std::nullopt;
  const ImageLayout& layout = (*manifest)->layout();
  const auto arrived = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  std::shared_ptr<Group> group;
  {
    absl::MutexLock lock(&mutex_);
    group = FindGathering(receiver);
    if (group == nullptr) return std::nullopt;
    group->members[receiver.location] = {.receiver = receiver, .arrived = arrived};
    group->layout = layout;
  }
  on_wait(absl::StrCat("a group of ", group->plan.world_size, " GPUs to form"));
  // To take and release the mutex has the waiting thread look at its condition again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  std::optional<SourceInfo> source;
  bool waits = true;
  {
    absl::MutexLock lock(&mutex_);
    const auto decided = [&] {
      return group->state == State::kBroadcasting || group->state == State::kOver ||
             group->members[receiver.location].is_root || context.cancellation.IsCancelled();
    };
    waits = !mutex_.AwaitWithTimeout(absl::Condition(&decided), TimeLeft(context.deadline)) ||
            context.cancellation.IsCancelled();
    const bool receives = !group->members[receiver.location].is_root;
    // The group may be over by now: what has arrived is there all the same.
    if (receives && !group->source.lane.empty()) source = group->source;
  }
  on_wait("");
  if (source.has_value()) {
    BroadcastMember member;
    member.source = *std::move(source);
    member.arrived = arrived;
    member.membership = std::shared_ptr<void>(group.get(), [this, group](void*) { Leave(*group); });
    return member;
  }
  // The group cannot go on without this receiver: every rank has to take part.
  if (waits) Leave(*group);
  return std::nullopt;
}

void WideBroadcasts::Leave(Group& group) {
  // The cancellation ends Reserve and Meet; `left` and Stop end Gather, Send and Receive.
  group.cancellation.Cancel();
  absl::MutexLock lock(&mutex_);
  group.left = true;
  if (group.unsent.has_value()) group.unsent->Stop();
  const auto over = [&group] { return group.state == State::kOver; };
  mutex_.Await(absl::Condition(&over));
}

// The group's thread. Whatever happens, the end is the same: the other nodes are told of a failure, the
// members of this node see the end of their availability, the root's lease ends, and the state is kOver.
void WideBroadcasts::Run(Group& group) {
  absl::Status status = Gather(group);
  if (status.ok()) status = Broadcast(group);
  status = Annotate(status, absl::StrCat("broadcast ", group.plan.artifact_id));
  // By now the broadcaster has let go of the memory.
  if (!status.ok()) {
    LOG(WARNING) << "run group " << group.plan.group_id << " of " << group.plan.world_size
                 << " GPUs of several nodes: the group failed, and its GPUs pull the missing chunks: "
                 << status;
    group.plan.meeting->GiveUp(group.plan, status);
  }
  std::vector<std::shared_ptr<Availability>> arrived;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [location, member] : group.members) arrived.push_back(member.arrived);
  }
  for (const std::shared_ptr<Availability>& each : arrived) each->End(status);
  std::shared_ptr<ReplicaLease> root;  // its end can free memory
  {
    absl::MutexLock lock(&mutex_);
    // Under the lock, since Leave may be about to stop it.
    group.unsent.reset();
    root = std::move(group.root);
  }
  root.reset();
  absl::MutexLock lock(&mutex_);
  group.state = State::kOver;
}

absl::Status WideBroadcasts::Gather(Group& group) {
  const WideGroupPlan& plan = group.plan;
  if (broadcaster_ == nullptr) {
    return absl::UnavailableError(
        "this node has no helper process for NCCL; set daemon.nccl to auto, or remove nccl "
        "from daemon.lanes");
  }
  if (plan.ranks.empty()) {
    return absl::InvalidArgumentError(
        "the global store's plan names no GPU of this node; report this defect of the global store");
  }
  std::shared_ptr<ReplicaLease> root;
  // A ready replica is the root where there is one, and no ingest joins for its place. Else the ingest of
  // this node that began first makes the root.
  for (const WideGroupPlan::Rank& rank : plan.ranks) {
    if (!plan.has_root || root != nullptr) break;
    absl::StatusOr<std::unique_ptr<ReplicaLease>> ready = table_->LeaseAt(plan.artifact_id, rank.location);
    if (ready.ok()) root = *std::move(ready);
  }
  std::vector<std::string> replicas;
  {
    absl::MutexLock lock(&mutex_);
    const size_t expected = plan.ranks.size() - (root == nullptr ? 0 : 1);
    const auto gathered = [&] { return group.members.size() >= expected || group.left; };
    const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&gathered), TimeLeft(plan.forms_until));
    if (group.left) {
      return absl::CancelledError(
          "a receiving GPU left the group; no action is needed, the other GPUs pull the missing chunks");
    }
    if (!in_time) {
      return absl::DeadlineExceededError(absl::StrCat(
          "only ", group.members.size(), " of the ", expected,
          " expected GPUs of this node joined in time; get the artifact on all these GPUs at the same time"));
    }
    for (const auto& [location, member] : group.members) replicas.push_back(member.receiver.replica_id);
  }
  if (plan.has_root && root == nullptr) root = table_->LeaseEarliest(replicas);
  if (plan.has_root && root == nullptr) {
    return absl::UnavailableError(
        "this node no longer has the replica to send; no action is needed, the GPUs pull the artifact");
  }
  absl::MutexLock lock(&mutex_);
  group.state = State::kMeeting;
  if (root == nullptr) return absl::OkStatus();
  group.root = std::move(root);
  group.layout = group.root->manifest()->layout();
  group.unsent.emplace(group.root.get());
  if (const auto member = group.members.find(group.root->location()); member != group.members.end()) {
    member->second.is_root = true;
  }
  return absl::OkStatus();
}

// The order: reserve the broadcaster of this node, meet the other nodes (which gives the communicator's id
// and the root's rank), join the communicator, send or receive. Until all nodes have met, forms_until and the
// group's cancellation end each wait.
absl::Status WideBroadcasts::Broadcast(Group& group) {
  const WideGroupPlan& plan = group.plan;
  RequestContext context;
  context.deadline = plan.forms_until;
  context.cancellation = group.cancellation;
  // The broadcaster is reserved before the other nodes are met: a node that says that it is ready can begin.
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<WideBroadcastGroup> wide, broadcaster_->Reserve(context));
  std::optional<WideRoot> mine;
  BroadcastWorld world{.size = plan.world_size};
  std::vector<DevicePtr> allocations;
  std::vector<otel::SpanLink> links;
  TraceContext parent;
  for (const WideGroupPlan::Rank& rank : plan.ranks) {
    world.ranks.push_back(rank.rank);
    if (group.root != nullptr && group.root->location() == rank.location) {
      allocations.push_back(group.root->memory().device);
      mine = WideRoot{
          .rank = rank.rank, .replica_id = group.root->replica_id(), .made_by = group.root->made_by()};
      continue;
    }
    absl::MutexLock lock(&mutex_);
    const BroadcastReceiver& receiver = group.members[rank.location].receiver;
    allocations.push_back(receiver.memory);
    links.push_back({.context = receiver.ingest});
    parent = receiver.ingest;
  }
  if (mine.has_value()) {
    TC_ASSIGN_OR_RETURN(mine->communicator_id, wide->MakeId());
  }
  TC_ASSIGN_OR_RETURN(const WideRoot root, plan.meeting->Meet(context, plan, mine));
  // The rank comes from another node. Where the root is elsewhere it must not be a rank of this node, which
  // would wait for itself.
  if (root.rank >= plan.world_size ||
      (!mine.has_value() && std::ranges::find(world.ranks, root.rank) != world.ranks.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sender gave ", root.rank, " as its rank, but ",
                     root.rank >= plan.world_size
                         ? absl::StrCat("the group has only ", plan.world_size, " ranks, numbered from 0")
                         : "this rank belongs to this node",
                     "; run one release on all nodes"));
  }
  world.id = root.communicator_id;
  world.root = root.rank;
  links.push_back({.context = root.made_by});
  otel::Span span("Nccl/Broadcast", parent,
                  {{otel::attr::kArtifactId, plan.artifact_id},
                   {otel::attr::kSizeBytes, group.layout->image_bytes},
                   {otel::attr::kLane, kNcclLane}},
                  {.links = links});
  absl::Status status = wide->Join(allocations, world);
  if (status.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      group.state = State::kBroadcasting;
      group.source.type = mine.has_value() ? SourceType::kLocal : SourceType::kRemote;
      group.source.lane = kNcclLane;
      group.source.name = mine.has_value() ? group.root->location().ToString() : root.node_name;
      group.source.made_by = root.made_by;
      group.source.replica_id = root.replica_id;
    }
    status = mine.has_value() ? Send(group, *wide) : Receive(group, *wide);
  }
  otel::metrics::kNcclBroadcasts.Add(1, {status.ok() ? "ok" : "failed"});
  return span.Record(status);
}

// The receivers wait for the next ranges in their broadcasters, so the root tells them of the end by the
// broadcast itself: by an empty list of ranges. Without it they would wait until their broadcasters give up.
absl::Status WideBroadcasts::Send(Group& group, WideBroadcastGroup& wide) {
  absl::Status ended;
  while (ended.ok() && !group.unsent->empty()) {
    const absl::StatusOr<std::vector<uint32_t>> chunks = group.unsent->Take(SteadyNow() + patience_);
    ended = chunks.status();
    if (!ended.ok()) break;
    TC_RETURN_IF_ERROR(wide.Broadcast(RangesOf(*group.layout, *chunks)));
    NoteArrived(group, *chunks);
  }
  // A regular end, even if not all chunks were sent.
  TC_RETURN_IF_ERROR(wide.Broadcast({}));
  return ended;
}

// The ranges come from the root's node, which this node need not trust with its memory: they are checked to
// be whole chunks, each at most once.
absl::Status WideBroadcasts::Receive(Group& group, WideBroadcastGroup& wide) {
  uint32_t missing = group.layout->chunk_count();
  std::vector<bool> has(missing, false);
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // A member that has all leaves, too; then only the end is to come.
      if (group.left && missing > 0) {
        return absl::CancelledError(
            "a receiving GPU left the group; no action is needed, the other GPUs pull the missing chunks");
      }
    }
    TC_ASSIGN_OR_RETURN(const std::vector<ByteRange> ranges, wide.Receive());
    if (ranges.empty()) break;
    TC_ASSIGN_OR_RETURN(const std::vector<uint32_t> chunks, ChunksOf(*group.layout, ranges));
    for (const uint32_t chunk : chunks) {
      // What was verified must not be written again.
      if (has[chunk]) {
        return absl::InvalidArgumentError(
            absl::StrCat("the sender sent chunk ", chunk, " twice; run one release on all nodes"));
      }
      has[chunk] = true;
    }
    missing -= static_cast<uint32_t>(chunks.size());
    NoteArrived(group, chunks);
  }
  if (missing == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the sender stopped, and ", missing, " of ", has.size(),
                   " chunks are missing; no action is needed, the GPUs pull these chunks"));
}

// The lock is not held while chunks are added, since that calls observers.
void WideBroadcasts::NoteArrived(Group& group, const std::vector<uint32_t>& chunks) {
  std::vector<std::shared_ptr<Availability>> arrived;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [location, member] : group.members) {
      if (!member.is_root) arrived.push_back(member.arrived);
    }
  }
  uint64_t bytes = 0;
  for (const uint32_t chunk : chunks) {
    bytes += group.layout->chunk(chunk).bytes;
    for (const std::shared_ptr<Availability>& each : arrived) each->Add(chunk);
  }
  otel::metrics::kNcclBroadcastBytes.Add(bytes * arrived.size());
}

}  // namespace tensorcast
