#include "transport/loopback/loopback_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/task_loop.h"
#include "transport/loopback/loopback_channel.h"
#include "transport/pull/connect_pull.h"
#include "transport/pull/pull_source.h"
#include "transport/registered_memory.h"

namespace tensorcast::transport {
namespace {

// Of one message: between two of them come cancellations, revocations and other fetches.
constexpr uint32_t kPieceBytes = uint32_t{1} << 20;

// An image in a GPU's memory, read as a network card reads it: not through a staging buffer of the node's.
class DeviceImage : public ServedImage {
 public:
  DeviceImage(std::shared_ptr<ServedImage> image, DeviceRuntime* devices)
      : image_(std::move(image)), devices_(*devices) {}
  uint64_t image_bytes() const override { return image_->image_bytes(); }
  bool in_place() const override { return false; }
  std::shared_ptr<const Availability> availability() const override { return image_->availability(); }
  absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    const DevicePtr from = image_->device_image() + offset;
    // At most one message of the image at a time; the source asks again for the rest.
    auto buffer = std::make_shared<std::vector<std::byte>>(std::min<uint64_t>(bytes, kPieceBytes));
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, devices_.CreateStream(from.device));
    TC_RETURN_IF_ERROR(stream->CopyToHost(buffer->data(), from, buffer->size()));
    TC_RETURN_IF_ERROR(stream->Synchronize());
    const ConstHostSpan read = *buffer;
    return ServedPiece{.bytes = read, .hold = std::move(buffer)};
  }

 private:
  const std::shared_ptr<ServedImage> image_;
  DeviceRuntime& devices_;
};

class LoopbackTransport : public Transport {
 public:
  explicit LoopbackTransport(const LoopbackOptions& options)
      : options_(options),
        loop_(std::make_shared<TaskLoop>("tc-loopback")),
        source_(options_.name, {.piece_bytes = kPieceBytes}, options.serving_threads),
        address_(
            AddLoopbackListener({.loop = loop_, .admit = [this](const auto& end, const pull::Hello& hello) {
                                   Admit(end, hello);
                                 }})) {}
  // Reads under way at the source post to the loop, and the ends of other transports may do so later: they
  // share it, and find it stopped.
  ~LoopbackTransport() override {
    // First, so that no receiver finds a loop that is about to stop.
    RemoveLoopbackListener(address_);
    loop_->Stop();
  }

  std::string_view name() const override { return options_.name; }

  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return memory_.Add(base, bytes).status();
  }

  LaneMemory memory() const override {
    return options_.devices == nullptr ? LaneMemory::kHost : LaneMemory::kHostAndDevice;
  }

  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes) override {
    if (options_.devices == nullptr) return Transport::RegisterDevice(base, bytes);
    if (options_.before_register_device) TC_RETURN_IF_ERROR(options_.before_register_device());
    TC_ASSIGN_OR_RETURN(const RegisteredMemory::AddedDevice added, memory_.AddDevice(base, bytes));
    // A fake card needs no key: the account of the memory is all.
    return std::shared_ptr<void>(nullptr, [this, added](void*) { memory_.RemoveDevice(added.region); });
  }

  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                 std::string_view /*receiver*/) override {
    TC_RETURN_IF_ERROR(pull::PullSource::CheckImage(memory_, *image));
    std::shared_ptr<void> hold;
    if (const DevicePtr on_device = image->device_image(); on_device && options_.devices != nullptr) {
      TC_ASSIGN_OR_RETURN(hold, RegisterDevice(on_device, image->image_bytes()));
      image = std::make_shared<DeviceImage>(std::move(image), options_.devices);
    }
    return source_.Serve(std::move(image), /*receiver=*/"", {.addresses = {address_}}, std::move(hold));
  }

  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override {
    TC_ASSIGN_OR_RETURN(pull::Descriptor decoded, pull::DecodeDescriptor(name(), descriptor));
    const std::string address = decoded.addresses.front();
    return pull::ConnectPull({.memory = &memory_}, context, std::move(decoded),
                             {std::make_shared<LoopbackChannel>(loop_, address, &memory_, options_.devices)});
  }

 private:
  void Admit(const std::shared_ptr<LoopbackChannel>& end, const pull::Hello& hello) {
    const auto pull = source_.Admit(hello, /*peer=*/"", &end->queue());
    if (!pull.ok()) {
      end->End(pull::Error{.status = pull.status()}, [] {});
      return;
    }
    end->Open(pull->get());
    (*pull)->Start(end);
  }

  const LoopbackOptions options_;
  RegisteredMemory memory_;
  const std::shared_ptr<TaskLoop> loop_;
  pull::PullSource source_;
  const std::string address_;
};

}  // namespace

std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options) {
  return std::make_unique<LoopbackTransport>(options);
}

}  // namespace tensorcast::transport
