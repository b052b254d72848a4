#include "collective/helper/helper_process.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {

using helper::BroadcastRequest;
using helper::ChildProcess;
using helper::CloseRequest;
using helper::JoinRequest;
using helper::OpenRequest;

std::string_view HelperProcess::WhyNot(State state) {
  switch (state) {
    case State::kStarting:
      return "the helper process of broadcasts starts";
    case State::kInUse:
      return "another broadcast is under way on this node";
    default:
      return "there are no broadcasts on this node";
  }
}

class HelperProcess::Group final : public BroadcastGroup {
 public:
  explicit Group(HelperProcess* owner) : owner_(owner) {}
  ~Group() override {
    for (const uint32_t memory : memories_) {
      if (owner_->child_ == nullptr) break;
      owner_->Ask(CloseRequest{.memory = memory}, owner_->options_.progress_timeout).IgnoreError();
    }
    owner_->SetState(State::kIdle);
  }

  // Ranks are by UUID, so that a set of devices has one communicator whichever is the root.
  absl::Status Begin(std::span<const DevicePtr> allocations) {
    std::map<std::string, DevicePtr> by_device;
    for (const DevicePtr& allocation : allocations) {
      by_device.emplace(owner_->devices_->devices()[allocation.device].uuid, allocation);
    }
    if (by_device.size() != allocations.size() || allocations.size() < 2 ||
        allocations.size() > helper::kMostRanks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a broadcast between ", allocations.size(), " allocations on ", by_device.size(),
          " devices: each has to be on one of its own, and there are 2 to ", helper::kMostRanks));
    }
    std::vector<std::string> uuids;
    for (const auto& [uuid, allocation] : by_device) {
      if (allocation == allocations.front()) root_ = static_cast<uint32_t>(uuids.size());
      uuids.push_back(uuid);
      TC_ASSIGN_OR_RETURN(IpcHandle handle, owner_->devices_->Export(allocation));
      TC_ASSIGN_OR_RETURN(const uint32_t memory, owner_->Ask(OpenRequest{.memory = std::move(handle)},
                                                             owner_->options_.forming_timeout));
      memories_.push_back(memory);
    }
    TC_ASSIGN_OR_RETURN(communicator_, owner_->CommunicatorOf(uuids));
    return absl::OkStatus();
  }

  absl::Status Broadcast(std::span<const ByteRange> ranges) override {
    if (owner_->child_ == nullptr) {
      return absl::FailedPreconditionError("the helper process of this broadcast has ended");
    }
    while (!ranges.empty()) {
      const auto part = ranges.first(std::min<size_t>(ranges.size(), helper::kMostRanges));
      const absl::Status sent = owner_
                                    ->Ask(BroadcastRequest{.communicator = communicator_,
                                                           .root = root_,
                                                           .memories = memories_,
                                                           .ranges = {part.begin(), part.end()}},
                                          owner_->options_.progress_timeout)
                                    .status();
      TC_RETURN_IF_ERROR(sent);
      ranges = ranges.subspan(part.size());
    }
    return absl::OkStatus();
  }

 private:
  HelperProcess* const owner_;
  uint32_t communicator_ = 0;
  uint32_t root_ = 0;
  std::vector<uint32_t> memories_;  // by rank
};

HelperProcess::HelperProcess(DeviceRuntime* devices, HelperOptions options)
    : devices_(devices), options_(std::move(options)) {
  if (const absl::Status started = StartChild(); !started.ok()) {
    LOG(WARNING) << "no broadcasts between the GPUs of this node: " << started;
    SetState(State::kUnavailable);
    return;
  }
  starting_ = std::thread([this] {
    const absl::Status hello = AwaitHello();
    // A host without the library is no fault; what each GPU needs it copies.
    LOG_IF(INFO, !hello.ok()) << "no broadcasts between the GPUs of this node: " << hello.message();
    if (!hello.ok()) child_->Kill();
    SetState(hello.ok() ? State::kIdle : State::kUnavailable);
  });
}

HelperProcess::~HelperProcess() {
  if (child_ != nullptr) child_->Interrupt();
  if (starting_.joinable()) starting_.join();
}

bool HelperProcess::available() const {
  absl::MutexLock lock(&mutex_);
  return state_ == State::kIdle && SteadyNow() >= not_before_;
}

void HelperProcess::SetState(State state) {
  absl::MutexLock lock(&mutex_);
  state_ = state;
}

absl::StatusOr<std::unique_ptr<BroadcastGroup>> HelperProcess::Open(std::span<const DevicePtr> allocations) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kIdle) return absl::UnavailableError(WhyNot(state_));
    if (SteadyNow() < not_before_) {
      return absl::UnavailableError("a group could not form a while ago, and none is tried yet");
    }
    state_ = State::kInUse;
  }
  auto group = std::make_unique<Group>(this);
  absl::Status formed = EnsureChild();
  if (formed.ok()) formed = group->Begin(allocations);
  if (formed.ok()) return group;
  if (child_ == nullptr) {
    LOG(WARNING) << "a broadcast could not begin; none is tried for " << options_.pause_after_failure;
    absl::MutexLock lock(&mutex_);
    not_before_ = SteadyNow() + options_.pause_after_failure;
  }
  return formed;
}

absl::Status HelperProcess::EnsureChild() {
  if (child_ != nullptr && !child_->running()) {
    End(How::kDied, absl::UnavailableError("it had nothing to do"));
  }
  if (child_ != nullptr) return absl::OkStatus();
  TC_RETURN_IF_ERROR(StartChild());
  absl::Status hello = AwaitHello();
  if (!hello.ok()) End(How::kKilled, hello);
  return hello;
}

absl::Status HelperProcess::StartChild() {
  TC_ASSIGN_OR_RETURN(child_, ChildProcess::Start(options_.argv));
  return absl::OkStatus();
}

absl::Status HelperProcess::AwaitHello() {
  TC_ASSIGN_OR_RETURN(const std::string message, child_->Receive(SteadyNow() + options_.forming_timeout));
  TC_ASSIGN_OR_RETURN(const uint32_t version, helper::DecodeReply(message));
  if (version == helper::kVersion) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a helper process of version ", version));
}

absl::StatusOr<uint32_t> HelperProcess::Ask(const helper::Request& request, absl::Duration timeout) {
  const absl::Status asked = child_->Send(helper::EncodeRequest(request));
  const absl::StatusOr<std::string> message =
      asked.ok() ? child_->Receive(SteadyNow() + timeout) : absl::StatusOr<std::string>(asked);
  if (!message.ok()) {
    End(absl::IsDeadlineExceeded(message.status()) ? How::kKilled : How::kDied, message.status());
    return message.status();
  }
  absl::StatusOr<uint32_t> answer = helper::DecodeReply(*message);
  // An error of the library can leave a hang behind.
  if (!answer.ok()) End(How::kKilled, answer.status());
  return answer;
}

absl::StatusOr<uint32_t> HelperProcess::CommunicatorOf(const std::vector<std::string>& device_uuids) {
  if (const auto kept = communicators_.find(device_uuids); kept != communicators_.end()) return kept->second;
  JoinRequest join{.world_size = static_cast<uint32_t>(device_uuids.size())};
  for (const std::string& uuid : device_uuids) {
    join.ranks.push_back({.rank = static_cast<uint32_t>(join.ranks.size()), .device_uuid = uuid});
  }
  TC_ASSIGN_OR_RETURN(const uint32_t communicator, Ask(join, options_.forming_timeout));
  communicators_.emplace(device_uuids, communicator);
  return communicator;
}

void HelperProcess::End(How how, const absl::Status& why) {
  child_->Kill();
  LOG(WARNING) << "the helper process of broadcasts, " << child_->pid() << ", "
               << (how == How::kDied ? "died" : "was killed")
               << ", and is started again when it is needed: " << why;
  otel::metrics::kNcclHelperEnds.Add(1, {how == How::kDied ? "died" : "killed"});
  communicators_.clear();
  child_.reset();
}

}  // namespace tensorcast
