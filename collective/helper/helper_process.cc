#include "collective/helper/helper_process.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "collective/helper/messages.h"

namespace tensorcast {

using helper::BroadcastRequest;
using helper::CloseRequest;
using helper::HelperLink;
using helper::JoinRequest;
using helper::LeaveRequest;
using helper::MakeIdRequest;
using helper::OpenRequest;
using helper::ReceiveRequest;

void HelperOptions::FromConfig(ConfigReader& config) {
  config.Read("daemon.nccl", nccl);
  if (nccl == "off") return;
  argv = {"tensorcast", "nccl-helper"};
  if (names_library()) argv.push_back(absl::StrCat("--library=", nccl));
}

void HelperOptions::Validate(Findings& findings) const {
  // The helper process finds out whether the file is NCCL and recent enough. A daemon does not load it.
  if (std::error_code ignored; names_library() && !std::filesystem::is_regular_file(nccl, ignored)) {
    findings.Add(
        "daemon.nccl",
        absl::StrCat("\"", nccl, "\" is not auto, off or a file on this host; give one of these values"));
  }
}

std::string_view HelperProcess::WhyNot(State state) {
  switch (state) {
    case State::kStarting:
      return "broadcast: the helper process is still starting; try again in some seconds";
    case State::kInUse:
      return "broadcast: another broadcast is under way on this node; try again when that broadcast has "
             "ended";
    default:
      return "broadcast: this node has no helper process for NCCL; transfers go on without NCCL, and the "
             "daemon's log says why the process did not start";
  }
}

// The allocations of the daemon that the process has open for one group, one a device. Their numbers are
// those that the process gave.
class HelperProcess::OpenMemories {
 public:
  explicit OpenMemories(HelperProcess* owner) : owner_(owner) {}
  ~OpenMemories() { Close(); }
  OpenMemories(const OpenMemories&) = delete;
  OpenMemories& operator=(const OpenMemories&) = delete;

  absl::Status Open(const DevicePtr& allocation) {
    TC_ASSIGN_OR_RETURN(IpcHandle handle, owner_->devices_->Export(allocation));
    TC_ASSIGN_OR_RETURN(const uint32_t number,
                        owner_->link_.AskFor<uint32_t>(OpenRequest{.memory = std::move(handle)},
                                                       owner_->options_.forming_timeout));
    numbers_.push_back(number);
    return absl::OkStatus();
  }
  void Close() {
    for (const uint32_t number : std::exchange(numbers_, {})) {
      // A process that has ended has none of them open. Ask can end it, hence the look before each one.
      if (owner_->link_.ended()) break;
      owner_->link_.Ask(CloseRequest{.memory = number}, owner_->options_.progress_timeout).IgnoreError();
    }
  }
  const std::vector<uint32_t>& numbers() const { return numbers_; }

  // From rank `root` of the communicator, in requests of at most `max_ranges`: one without ranges where there
  // are none.
  absl::Status Broadcast(uint32_t communicator, uint32_t root, std::span<const ByteRange> ranges,
                         size_t max_ranges) const {
    do {
      TC_RETURN_IF_ERROR(owner_->link_.CheckRuns());
      const auto part = ranges.first(std::min(ranges.size(), max_ranges));
      const BroadcastRequest request{.communicator = communicator,
                                     .root = root,
                                     .memories = numbers_,
                                     .ranges = {part.begin(), part.end()}};
      TC_RETURN_IF_ERROR(owner_->link_.AskFor<uint32_t>(request, owner_->options_.progress_timeout).status());
      ranges = ranges.subspan(part.size());
    } while (!ranges.empty());
    return absl::OkStatus();
  }

 private:
  HelperProcess* const owner_;
  std::vector<uint32_t> numbers_;
};

// A group of this node's GPUs. While it lives the state is kInUse, and the thread that uses the group alone
// uses the process.
class HelperProcess::Group final : public BroadcastGroup {
 public:
  explicit Group(HelperProcess* owner) : owner_(owner), memories_(owner) {}
  ~Group() override {
    memories_.Close();
    // Last: from here on another thread may open a group, and so use the process.
    owner_->SetState(State::kIdle);
  }

  // Ranks are by UUID, so that a set of devices has one communicator whichever is the root.
  absl::Status Begin(std::span<const DevicePtr> allocations) {
    // Two allocations on one device make the map smaller than the list, which the check below sees.
    std::map<std::string, DevicePtr> by_device;
    for (const DevicePtr& allocation : allocations) {
      by_device.emplace(owner_->devices_->devices()[allocation.device].uuid, allocation);
    }
    if (by_device.size() != allocations.size() || allocations.size() < 2 ||
        allocations.size() > helper::kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat("open a group of ", allocations.size(), " allocations on ", by_device.size(),
                       " devices: a group needs one allocation on each of 2 to ", helper::kMaxRanks,
                       " devices; pass one allocation for each device"));
    }
    std::vector<std::string> uuids;
    for (const auto& [uuid, allocation] : by_device) {
      if (allocation == allocations.front()) root_ = static_cast<uint32_t>(uuids.size());
      uuids.push_back(uuid);
      TC_RETURN_IF_ERROR(memories_.Open(allocation));
    }
    TC_ASSIGN_OR_RETURN(communicator_, owner_->link_.CommunicatorOf(uuids));
    return absl::OkStatus();
  }

  absl::Status Broadcast(std::span<const ByteRange> ranges) override {
    if (ranges.empty()) return owner_->link_.CheckRuns();
    return memories_.Broadcast(communicator_, root_, ranges, helper::kMaxRanges);
  }

 private:
  HelperProcess* const owner_;
  uint32_t communicator_ = 0;
  uint32_t root_ = 0;
  OpenMemories memories_;  // by rank
};

// A group with ranks on other nodes. Open with Reserve, then MakeId on the root's node, then Join on every
// node; then Broadcast on the root's node and Receive on the others, in turn, until empty ranges announce the
// end. begun_ says that other nodes may wait for this one, ended_ that the end was announced.
class HelperProcess::WideGroup final : public WideBroadcastGroup {
 public:
  explicit WideGroup(HelperProcess* owner) : owner_(owner), memories_(owner) {}
  // One that leaves before the end leaves the others waiting for it: they see soon that its process is gone.
  // In this order: killing the process comes first, since no request may wait behind a library that hangs.
  // After that there is nothing to close or to leave, and the state is given back last.
  ~WideGroup() override {
    if (begun_ && !ended_ && !owner_->link_.ended()) {
      owner_->link_.End(
          HelperLink::How::kKilled,
          absl::CancelledError("broadcast between nodes: this node left the group before the broadcast was "
                               "complete; no action is needed, the tasks continue without the group"));
    }
    memories_.Close();
    if (ended_ && !owner_->link_.ended()) {
      owner_->link_.Ask(LeaveRequest{.communicator = communicator_}, owner_->options_.wide_forming_timeout)
          .IgnoreError();
    }
    owner_->SetState(State::kIdle);
  }

  absl::StatusOr<std::string> MakeId() override {
    TC_RETURN_IF_ERROR(owner_->link_.CheckRuns());
    begun_ = true;  // the library listens for the ranks that are to join
    return owner_->link_.AskFor<std::string>(MakeIdRequest(), owner_->options_.progress_timeout);
  }

  absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) override {
    TC_RETURN_IF_ERROR(owner_->link_.CheckRuns());
    if (allocations.size() != world.ranks.size() || world.id.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("join a group of ", world.size, " ranks: ", allocations.size(), " allocations, ",
                       world.ranks.size(), " ranks of this node and an id of ", world.id.size(),
                       " bytes were given; pass one allocation for each rank, and the id that MakeId made"));
    }
    if (allocations.empty() || allocations.size() > helper::kMaxRanks || allocations.size() >= world.size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "join a group of ", world.size, " ranks with ", allocations.size(), " ranks on this node: 1 to ",
          helper::kMaxRanks,
          " ranks must be on this node, and at least 1 rank on another node; for one node, open a "
          "group instead"));
    }
    // Set before the first message: from here on ranks of other nodes may wait for this one.
    begun_ = true;
    JoinRequest join{.id = world.id, .world_size = world.size};
    for (size_t i = 0; i < allocations.size(); ++i) {
      TC_RETURN_IF_ERROR(memories_.Open(allocations[i]));
      join.ranks.push_back(
          {.rank = world.ranks[i], .device_uuid = owner_->devices_->devices()[allocations[i].device].uuid});
    }
    root_ = world.root;
    TC_ASSIGN_OR_RETURN(communicator_,
                        owner_->link_.AskFor<uint32_t>(join, owner_->options_.wide_forming_timeout));
    return absl::OkStatus();
  }

  absl::Status Broadcast(std::span<const ByteRange> ranges) override {
    // No ranges tell the other processes that no broadcast follows: that message is sent too.
    TC_RETURN_IF_ERROR(memories_.Broadcast(communicator_, root_, ranges, helper::kMaxHeaderRanges));
    ended_ = ranges.empty();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ByteRange>> Receive() override {
    TC_RETURN_IF_ERROR(owner_->link_.CheckRuns());
    TC_ASSIGN_OR_RETURN(
        std::vector<ByteRange> ranges,
        owner_->link_.AskFor<std::vector<ByteRange>>(
            ReceiveRequest{.communicator = communicator_, .root = root_, .memories = memories_.numbers()},
            owner_->options_.progress_timeout));
    ended_ = ranges.empty();
    return ranges;
  }

 private:
  HelperProcess* const owner_;
  uint32_t communicator_ = 0;
  uint32_t root_ = 0;
  OpenMemories memories_;
  bool begun_ = false;
  bool ended_ = false;  // in good order
};

HelperProcess::HelperProcess(DeviceRuntime* devices, HelperOptions options)
    : devices_(devices), options_(std::move(options)), link_(options_.argv, options_.forming_timeout) {
  if (const absl::Status started = link_.Start(); !started.ok()) {
    LOG(WARNING) << "this node does not broadcast between its GPUs: " << started;
    SetUnavailable(started);
    return;
  }
  // Loading the library takes seconds, for which the start of a daemon does not wait.
  try {
    starting_ = std::thread([this] {
      const absl::StatusOr<std::string> library = link_.AwaitHello();
      // A host without the library is not a fault in itself; what each GPU needs it copies.
      if (library.ok()) {
        SetLibrary(*library);
        return SetState(State::kIdle);
      }
      LOG(LEVEL(options_.names_library() ? absl::LogSeverity::kWarning : absl::LogSeverity::kInfo))
          << "this node does not broadcast between its GPUs: " << library.status().message();
      link_.Kill();
      SetUnavailable(library.status());
    });
  } catch (const std::system_error& error) {
    const absl::Status none = absl::ResourceExhaustedError(
        absl::StrCat("await the helper process: no thread can be started (", error.what(),
                     "); raise the limit of threads (`ulimit -u`)"));
    LOG(WARNING) << "this node does not broadcast between its GPUs: " << none.message();
    link_.Kill();
    SetUnavailable(none);
  }
}

// The thread that starts may still wait for the process's first message. The process's end ends that wait.
HelperProcess::~HelperProcess() {
  link_.Interrupt();
  if (starting_.joinable()) starting_.join();
}

bool HelperProcess::available() const {
  absl::MutexLock lock(&mutex_);
  return state_ == State::kIdle && SteadyNow() >= not_before_;
}

// kStarting -> kIdle <-> kInUse; kUnavailable, from kStarting alone, is final. Only the thread that made
// the state kStarting or kInUse leaves it, and between the two it alone uses link_.
void HelperProcess::SetState(State state) {
  absl::MutexLock lock(&mutex_);
  state_ = state;
}

void HelperProcess::SetUnavailable(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  unavailable_ = absl::UnavailableError(why.message());
  state_ = State::kUnavailable;
}

void HelperProcess::SetLibrary(std::string version) {
  absl::MutexLock lock(&mutex_);
  library_ = std::move(version);
}

absl::StatusOr<std::string> HelperProcess::version() const {
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kUnavailable) return unavailable_;
  if (library_.empty()) return absl::UnavailableError(WhyNot(State::kStarting));
  return library_;
}

absl::Status HelperProcess::CheckPause() const {
  if (SteadyNow() >= not_before_) return absl::OkStatus();
  return absl::UnavailableError(
      "open a group: the previous group could not form, and the pause after this failure has not ended; try "
      "again later");
}

absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> HelperProcess::Reserve(const RequestContext& context) {
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  {
    absl::MutexLock lock(&mutex_);
    const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state_ == State::kIdle || state_ == State::kUnavailable || context.cancellation.IsCancelled();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&free), TimeLeft(context.deadline));
    if (state_ == State::kUnavailable) return unavailable_;
    if (state_ != State::kIdle) return absl::UnavailableError(WhyNot(state_));
    TC_RETURN_IF_ERROR(CheckPause());
    state_ = State::kInUse;
  }
  // Made before what can fail: its destructor gives the state back.
  auto group = std::make_unique<WideGroup>(this);
  TC_RETURN_IF_ERROR(EnsureChild());
  return group;
}

absl::StatusOr<std::unique_ptr<BroadcastGroup>> HelperProcess::Open(std::span<const DevicePtr> allocations) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kIdle) return absl::UnavailableError(WhyNot(state_));
    TC_RETURN_IF_ERROR(CheckPause());
    state_ = State::kInUse;
  }
  auto group = std::make_unique<Group>(this);
  absl::Status formed = EnsureChild();
  if (formed.ok()) formed = group->Begin(allocations);
  if (formed.ok()) return group;
  // Only when the process ended over it: a group that was refused for its arguments says nothing of the next
  // one. `group` still lives here, so the state is kInUse, and this thread may look at link_.
  if (link_.ended()) {
    LOG(WARNING) << "begin a broadcast: the helper process ended during this attempt, so the daemon tries no "
                    "broadcast for "
                 << options_.pause_after_failure << ": " << formed;
    absl::MutexLock lock(&mutex_);
    not_before_ = SteadyNow() + options_.pause_after_failure;
  }
  return formed;
}

absl::Status HelperProcess::EnsureChild() {
  TC_ASSIGN_OR_RETURN(std::optional<std::string> library, link_.EnsureRuns());
  if (library.has_value()) SetLibrary(*std::move(library));
  return absl::OkStatus();
}

}  // namespace tensorcast
