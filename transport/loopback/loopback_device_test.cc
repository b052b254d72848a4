// Memory of GPUs at both ends of a pull, each end with devices of its own.
#include <gtest/gtest.h>

#include "core/device/fake_device.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::loopback_device_test {
namespace {

constexpr uint64_t kImageBytes = 3 * kTestChunkBytes + 77;

class ImageOnDevice : public ServedImage {
 public:
  explicit ImageOnDevice(DevicePtr image) : image_(image) {}
  uint64_t image_bytes() const override { return kImageBytes; }
  bool in_place() const override { return false; }
  DevicePtr device_image() const override { return image_; }
  absl::StatusOr<ServedPiece> Read(uint64_t, uint64_t) override {
    return absl::InternalError("a lane that reaches the device does not read by the host");
  }

 private:
  const DevicePtr image_;
};

TEST(LoopbackDevices, DeviceImage_IsPulledToDeviceAndToHost) {
  const std::unique_ptr<DeviceRuntime> ours = CreateFakeRuntime({}).value();
  const std::unique_ptr<DeviceRuntime> theirs = CreateFakeRuntime({}).value();
  const auto source = NewLoopbackTransport({.devices = ours.get()});
  const auto receiver = NewLoopbackTransport({.devices = theirs.get()});
  TestMemory memory(2 * kImageBytes);
  ASSERT_EQ(receiver->RegisterMemory(memory.data(), memory.bytes()), absl::OkStatus());
  const HostSpan expected = memory.span(0, kImageBytes);
  WritePattern(expected, 0);
  const DevicePtr from = ours->Allocate(0, kImageBytes).value();
  const DevicePtr to = theirs->Allocate(0, kImageBytes).value();
  {
    const auto stream = ours->CreateStream(0).value();
    ASSERT_EQ(stream->CopyToDevice(from, expected.data(), kImageBytes), absl::OkStatus());
    ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
  }
  auto serving = source->Serve(std::make_shared<ImageOnDevice>(from), /*receiver=*/"").value();
  auto registered = receiver->RegisterDevice(to, kImageBytes).value();
  auto pull = receiver->Connect(RequestContext::Background(absl::Seconds(30)), serving->descriptor()).value();
  Completions done;
  pull->FetchToDevice(0, to, kImageBytes, SteadyTime::InfiniteFuture(), done.Expect());
  ASSERT_TRUE(done.Wait());
  EXPECT_EQ(done.statuses()[0], absl::OkStatus());
  EXPECT_EQ(done.digests()[0], std::nullopt) << "the bytes did not pass through the host";
  const HostSpan there = memory.span(kImageBytes, kImageBytes);
  const auto stream = theirs->CreateStream(0).value();
  ASSERT_EQ(stream->CopyToHost(there.data(), to, kImageBytes), absl::OkStatus());
  ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(there, 0));

  std::fill(there.begin(), there.end(), std::byte{0});
  EXPECT_EQ(PullAll(*pull, {there}), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(there, 0));

  // Once it is not registered any more, nothing is written there.
  registered.reset();
  pull->FetchToDevice(0, to, kImageBytes, SteadyTime::InfiniteFuture(), done.Expect());
  ASSERT_TRUE(done.Wait());
  EXPECT_EQ(done.statuses()[1].code(), absl::StatusCode::kInvalidArgument);
  pull.reset();
  serving.reset();
  EXPECT_EQ(ours->Free(from), absl::OkStatus());
  EXPECT_EQ(theirs->Free(to), absl::OkStatus());
}

}  // namespace
}  // namespace tensorcast::transport::loopback_device_test
