// The product's CUDA code when a device's context breaks: that device is unhealthy from then on, its memory
// is given back without a call that could hang, and the other devices work on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "core/device/device_runtime.h"
#include "core/device/testing/device_bytes.h"
#include "core/device/testing/device_faults.h"
#include "core/device/testing/ipc_peer.h"

namespace tensorcast {
namespace {

using testing::Download;
using testing::HandleFromText;
using testing::IpcPeer;
using testing::Pattern;
using testing::Upload;

constexpr uint64_t kBytes = uint64_t{2} << 20;

// A device stays broken until its process ends, so every test breaks one in a child of its own, which has
// done nothing with CUDA before.
class PoisonedDevice : public ::testing::Test {
 protected:
  PoisonedDevice() { setenv(kDeviceFaultsVariable, path_.c_str(), 1); }
  ~PoisonedDevice() override {
    unsetenv(kDeviceFaultsVariable);
    unlink(path_.c_str());
  }

  std::unique_ptr<DeviceRuntime> Runtime() {
    absl::StatusOr<std::unique_ptr<DeviceRuntime>> runtime = CreateCudaRuntime();
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }
  DevicePtr Allocate(DeviceRuntime& runtime, int device) {
    const absl::StatusOr<DevicePtr> memory = runtime.Allocate(device, kBytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.value_or(DevicePtr{});
  }
  // By a copy to this memory.
  absl::Status Break(DeviceRuntime& runtime, DevicePtr memory) {
    const auto faults = OpenDeviceFaults(path_);
    EXPECT_TRUE(faults.ok()) << faults.status();
    (*faults)->poison_copies = 1;
    return Upload(runtime, memory, Pattern(1, kBytes));
  }

  const std::string path_ = ::testing::TempDir() + "/poisoned-device-" + std::to_string(getpid());
};

#define IN_ITS_OWN_PROCESS(body)     \
  EXPECT_EXIT(                       \
      {                              \
        body();                      \
        _exit(HasFailure() ? 1 : 0); \
      },                             \
      ::testing::ExitedWithCode(0), "")

TEST_F(PoisonedDevice, PoisonedDevice_StaysUnhealthyWithFirstReason) {
  IN_ITS_OWN_PROCESS([this] {
    const auto runtime = Runtime();
    const DevicePtr memory = Allocate(*runtime, 0);
    EXPECT_TRUE(runtime->CheckHealth(0).ok());
    EXPECT_EQ(Break(*runtime, memory).code(), absl::StatusCode::kInternal);
    const absl::Status health = runtime->CheckHealth(0);
    EXPECT_EQ(health.code(), absl::StatusCode::kInternal) << health;
    EXPECT_TRUE(absl::StrContains(health.message(), "cudaErrorIllegalAddress")) << health;
    EXPECT_TRUE(absl::StrContains(health.message(), "use another device")) << health;
    EXPECT_EQ(runtime->Allocate(0, kBytes).status(), health);
    EXPECT_EQ(runtime->CreateStream(0).status(), health);
    EXPECT_EQ(runtime->Export(memory).status(), health);
    EXPECT_EQ(Upload(*runtime, memory, Pattern(2, kBytes)), health);
    EXPECT_EQ(runtime->CheckHealth(0), health);
  });
}

TEST_F(PoisonedDevice, PoisonedDevice_LeavesOtherDevicesHealthy) {
  IN_ITS_OWN_PROCESS([this] {
    const auto runtime = Runtime();
    EXPECT_FALSE(Break(*runtime, Allocate(*runtime, 0)).ok());
    EXPECT_TRUE(runtime->CheckHealth(1).ok());
    const DevicePtr memory = Allocate(*runtime, 1);
    EXPECT_TRUE(Upload(*runtime, memory, Pattern(2, kBytes)).ok());
    // A thread's first device is 0, which is the broken one.
    std::thread([&] { EXPECT_EQ(Download(*runtime, memory, kBytes).value(), Pattern(2, kBytes)); }).join();
    std::vector<std::byte> host(kBytes);
    EXPECT_TRUE(runtime->RegisterHost(host.data(), host.size(), HostAccess::kReadWrite).ok());
    EXPECT_TRUE(runtime->UnregisterHost(host.data()).ok());
    EXPECT_TRUE(runtime->Free(memory).ok());
  });
}

TEST_F(PoisonedDevice, PoisonedDevice_StillFreesItsMemory) {
  IN_ITS_OWN_PROCESS([this] {
    const auto runtime = Runtime();
    const auto exporter = IpcPeer::Start("cuda", "export");
    EXPECT_TRUE(exporter.ok()) << exporter.status();
    const absl::StatusOr<DevicePtr> opened = runtime->OpenIpc(HandleFromText((*exporter)->ReadLine()));
    EXPECT_TRUE(opened.ok()) << opened.status();
    const DevicePtr memory = Allocate(*runtime, 0);
    auto stream = runtime->CreateStream(0);
    EXPECT_TRUE(stream.ok()) << stream.status();
    Allocate(*runtime, 0);  // left for the runtime's end
    EXPECT_FALSE(Break(*runtime, memory).ok());
    stream->reset();
    EXPECT_TRUE(runtime->Free(memory).ok());
    EXPECT_EQ(runtime->Free(memory).code(), absl::StatusCode::kInvalidArgument) << "once";
    EXPECT_TRUE(runtime->CloseIpc(*opened).ok());
    EXPECT_EQ((*exporter)->Finish(), 0) << "its own context is whole";
  });
}

}  // namespace
}  // namespace tensorcast
