#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/loopback/loopback_channel.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::loopback_contract_test {
namespace {

class LoopbackPeer : public ProtocolPeer, pull::MessageChannel::Handler {
 public:
  ~LoopbackPeer() override {
    if (!address_.empty()) RemoveLoopbackListener(address_);
    loop_->Run([this] {
      if (end_ != nullptr) end_->End(std::nullopt, [] {});
    });
    loop_->Stop();
  }

  void Connect(const std::string& address) override {
    loop_->Run([&] {
      end_ = std::make_shared<LoopbackChannel>(loop_, address, &memory_, /*devices=*/nullptr);
      end_->Connect(this);
    });
  }
  std::string Listen() override {
    return address_ =
               AddLoopbackListener({.loop = loop_, .admit = [this](const auto& end, const auto& hello) {
                                      end_ = end;
                                      end->Open(this);
                                      (void)OnFrame(hello);
                                    }});
  }
  void Send(const pull::Frame& frame) override {
    loop_->Run([&] { end_->Send(frame); });
  }
  void SendPiece(const pull::Data& head, std::string_view piece) override {
    const auto bytes = std::make_shared<std::string>(piece);
    loop_->Run([&] { end_->SendPiece(head, std::as_bytes(std::span(*bytes)), bytes); });
  }
  pull::Frame Next() override {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &LoopbackPeer::HeardOrLost), absl::Seconds(30));
    if (heard_.empty()) ADD_FAILURE() << "heard nothing";
    if (heard_.empty()) return pull::Bye{};
    pull::Frame frame = std::move(heard_.front());
    heard_.pop_front();
    return frame;
  }
  std::string ReadBytes(size_t bytes) override {
    absl::MutexLock lock(&mutex_);
    std::string read = pieces_.substr(0, bytes);
    pieces_.erase(0, bytes);
    return read;
  }
  bool IsClosed() override {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&lost_), absl::Seconds(30));
  }

 private:
  absl::Status OnFrame(const pull::Frame& frame) override {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(frame);
    return absl::OkStatus();
  }
  absl::Status OnPiece(const pull::Data&) override { return absl::OkStatus(); }
  HostSpan Place(const pull::Data& rest) override {
    place_.resize(rest.bytes);
    return place_;
  }
  void OnPieceBytes(const pull::Data& head, ConstHostSpan held) override {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(head);
    pieces_.append(reinterpret_cast<const char*>(held.data()), held.size());
  }
  void OnLost(const absl::Status&) override {
    absl::MutexLock lock(&mutex_);
    lost_ = true;
  }
  void Refill() override {}
  bool HeardOrLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lost_ || !heard_.empty(); }

  const std::shared_ptr<TaskLoop> loop_ = std::make_shared<TaskLoop>();
  const RegisteredMemory memory_{};
  std::string address_;
  std::shared_ptr<LoopbackChannel> end_;  // as place_, the loop's
  std::vector<std::byte> place_;
  absl::Mutex mutex_;
  std::deque<pull::Frame> heard_ ABSL_GUARDED_BY(mutex_);
  std::string pieces_ ABSL_GUARDED_BY(mutex_);
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

const auto kLane =
    testing::Values(LaneUnderTest{.lane = "loopback",
                                  .create = [](const std::string&) { return NewLoopbackTransport(); },
                                  .new_peer = [] { return std::make_unique<LoopbackPeer>(); }});
INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract, kLane);
INSTANTIATE_TEST_SUITE_P(Loopback, FillingContract, kLane);
INSTANTIATE_TEST_SUITE_P(Loopback, ProtocolContract, kLane);

}  // namespace
}  // namespace tensorcast::transport::loopback_contract_test
