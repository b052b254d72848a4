#include "transport/loopback/loopback_transport.h"

#include <utility>

#include "base/status.h"
#include "transport/loopback/event_loop.h"
#include "transport/loopback/loopback_pull.h"
#include "transport/loopback/loopback_serving.h"
#include "transport/registered_memory.h"
#include "transport/serving_threads.h"

namespace tensorcast::transport {
namespace {

class LoopbackTransport : public Transport {
 public:
  explicit LoopbackTransport(const LoopbackOptions& options)
      : threads_(options.serving_threads), loop_(std::make_shared<EventLoop>()) {}
  ~LoopbackTransport() override { loop_->Stop(); }

  std::string_view name() const override { return "loopback"; }

  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return memory_.Add(base, bytes).status();
  }

  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image) override {
    if (image->in_place()) {
      TC_RETURN_IF_ERROR(CheckSegments(memory_, image->image_bytes(), image->segments()));
    }
    return RegisterLoopbackServing(std::make_shared<LoopbackSource>(std::move(image), &threads_));
  }

  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override {
    TC_RETURN_IF_ERROR(context.Check("connecting to a loopback serving"));
    TC_ASSIGN_OR_RETURN(const PullId id, DecodeLoopbackDescriptor(descriptor));
    std::shared_ptr<LoopbackSource> source = FindLoopbackSource(id);
    if (source == nullptr) return absl::NotFoundError("the source does not serve this pull (any more)");
    source->SetReceiverTrace(context.trace);
    return NewLoopbackPull(std::move(source), loop_, &memory_);
  }

 private:
  RegisteredMemory memory_;
  ServingThreads threads_;
  // Shared with reads that a pull gave up, which may end later than this transport.
  const std::shared_ptr<EventLoop> loop_;
};

}  // namespace

std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options) {
  return std::make_unique<LoopbackTransport>(options);
}

}  // namespace tensorcast::transport
