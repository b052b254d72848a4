// The receiver's side of a pull by UCX: connecting, the bookkeeping of fetches, and the ways in which a pull
// ends. What moves the bytes is up to the lane (messages_pull.cc, rma_pull.cc). Private to this folder; all
// of it belongs to the progress thread but for NewUcxPull's result.
//
//   connecting --WELCOME--> open --(error, cancel)--> broken --> ending (BYE sent) --BYE--> over
//        |                                                          |
//        +------------------(error, deadline)------> closing <------+ (drain timeout)
//
// A fetch is completed when it is whole, or failed and no receive into its destination is in flight. Receives
// that do not end by themselves are ended by closing the endpoint by force.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "transport/registered_memory.h"
#include "transport/silent_pull_stall.h"
#include "transport/transport.h"
#include "transport/ucx/descriptor.h"
#include "transport/ucx/endpoint_cache.h"
#include "transport/ucx/ucx_endpoint.h"

namespace tensorcast::transport {

// What pulls of one transport share. Outlives them.
struct ReceiverContext {
  UcxWorker* worker = nullptr;
  EndpointCache* cache = nullptr;
  const RegisteredMemory* memory = nullptr;
  absl::Duration drain_timeout = absl::Milliseconds(500);
  uint64_t part_bytes = uint64_t{4} << 20;  // of one request or remote read
  uint32_t parts_in_flight = 16;            // of one pull
  uint32_t max_piece_bytes = 0;             // that the source may send in one message; 0: any
};

class UcxPullCore : public EndpointOwner, public std::enable_shared_from_this<UcxPullCore> {
 public:
  UcxPullCore(const ReceiverContext& context, UcxDescriptor descriptor, SocketAddress address,
              std::string traceparent);
  ~UcxPullCore() override;

  // `connected` is called exactly once.
  void Connect(std::function<void(absl::Status)> connected);
  // Gives up connecting.
  void Abort(const absl::Status& status);

  void Fetch(FetchId id, uint64_t offset, const std::vector<HostSpan>& destination, SteadyTime deadline,
             FetchDone done);
  // Cancels the pull where that fetch is not over: nothing but a forced close of the endpoint takes back a
  // receive.
  void CancelFetch(FetchId id);
  void SetSilenceLimit(absl::Duration limit) { silence_.set_limit(limit); }
  void Cancel();
  // Cancel, and `ended` once every fetch has completed.
  void End(std::function<void()> ended);

  UcxWorker& worker() { return *context_.worker; }

  void OnControl(const wire::Control& message) final;
  void OnFailed(const absl::Status& status) final;

 protected:
  // A contiguous piece of a fetch.
  struct Part {
    uint64_t fetch = 0;
    uint64_t offset = 0;  // in the image
    HostSpan destination;
  };

  // Asks for waiting parts, as many as credit allows.
  virtual void Pump() = 0;
  // The endpoint is welcome. An error ends connecting.
  virtual absl::Status Opened() { return absl::OkStatus(); }
  // Stops asking; nothing that arrives from now on may start a receive.
  virtual void Abandon() = 0;
  // The request's share of an error; true when the id was known.
  virtual bool RequestFailed(uint64_t request_id, const absl::Status& status) = 0;

  bool NextPart(Part& part);
  // False once the fetch has failed: its bytes need not be received.
  bool Wanted(uint64_t fetch) const;
  // A receive into the fetch's destination begins, and ends. Ending may complete the fetch.
  void ReceiveStarted(uint64_t fetch);
  void ReceiveEnded(uint64_t fetch, uint64_t bytes, const absl::Status& status);
  // Takes a piece out of a network buffer: copies it to its place, and digests it on the way for as long as
  // pieces come in the order of the image. `destination` is as long as the piece. May complete the fetch.
  void TakePiece(uint64_t fetch, uint64_t offset, HostSpan destination, ConstHostSpan piece);
  // The fetch fails and so does the pull, unless the code is INVALID_ARGUMENT.
  void FailFetch(uint64_t fetch, const absl::Status& status);

  bool open() const { return state_ == State::kOpen && broken_.ok() && endpoint_->usable(); }
  const ReceiverContext& context() const { return context_; }
  const UcxDescriptor& descriptor() const { return descriptor_; }
  UcxEndpoint& endpoint() { return *endpoint_; }
  const wire::Welcome& welcome() const { return welcome_; }

 private:
  enum class State { kConnecting, kOpen, kEnding, kClosing, kOver };
  struct FetchState {
    uint64_t end = 0;  // in the image
    uint64_t bytes_left = 0;
    uint64_t digested_to = 0;  // image bytes before it are in `digest`
    DigestBuilder digest;
    int receives = 0;
    absl::Status failure;
    FetchDone done;
    TaskQueue::TimerId timer = TaskQueue::kNoTimer;
  };

  void On(const wire::Hello&) { ProtocolError("a receiver was sent HELLO"); }
  void On(const wire::Request&) { ProtocolError("a receiver was sent REQUEST"); }
  void On(const wire::Welcome& welcome);
  void On(const wire::Error& error);
  void On(const wire::Bye&);
  void ProtocolError(std::string_view what);

  absl::Status SendHello();
  void Connected(const absl::Status& status);
  void AddParts(uint64_t fetch, uint64_t offset, const std::vector<HostSpan>& destination);
  void Expire(uint64_t fetch);
  void Silent();
  // Fails every fetch and lets the endpoint go, by force when `lost`.
  void Break(const absl::Status& status, bool lost);
  void MaybeComplete(uint64_t fetch);
  void SayBye();
  void CloseEndpoint();
  void Over();
  void MaybeEnded();

  const ReceiverContext context_;
  const UcxDescriptor descriptor_;
  const SocketAddress address_;
  const std::string traceparent_;
  std::function<void(absl::Status)> connected_;
  std::shared_ptr<UcxEndpoint> endpoint_;
  bool endpoint_was_idle_ = false;  // it came from the cache, where it may have died unnoticed
  wire::Welcome welcome_;
  State state_ = State::kConnecting;
  absl::Status broken_;
  std::map<uint64_t, FetchState> fetches_;
  std::deque<Part> waiting_;
  int receives_ = 0;
  SilentPullStall silence_;  // while fetches are pending
  TaskQueue::TimerId drain_timer_ = TaskQueue::kNoTimer;
  std::vector<std::function<void()>> on_ended_;
  std::shared_ptr<UcxPullCore> self_;  // while the endpoint is ours: it calls us
};

// The pulls of the two lanes.
std::shared_ptr<UcxPullCore> NewMessagesPull(const ReceiverContext& context, UcxDescriptor descriptor,
                                             SocketAddress address, std::string traceparent);
std::shared_ptr<UcxPullCore> NewRmaPull(const ReceiverContext& context, UcxDescriptor descriptor,
                                        SocketAddress address, std::string traceparent);

// The public handle of a connected pull.
std::unique_ptr<Pull> NewUcxPull(std::shared_ptr<UcxPullCore> core);

}  // namespace tensorcast::transport
