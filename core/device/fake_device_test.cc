// What only the fake backend promises: faults, opaque addresses, and exporters that die.
#include "core/device/fake_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/ids.h"
#include "core/device/ipc_format.h"
#include "core/device/testing/fault_hooks.h"
#include "core/device/testing/ipc_peer.h"

namespace tensorcast::fake_device_test {
namespace {

using testing::Download;
using testing::HandleFromText;
using testing::IpcPeer;
using testing::Pattern;
using testing::Upload;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Of this process, of memfds and the like: RssShmem of /proc/self/status.
uint64_t ResidentSharedKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    if (absl::StartsWith(line, "RssShmem:") && absl::SimpleAtoi(line.substr(9, line.size() - 9 - 3), &kib)) {
      return kib;
    }
  }
  ADD_FAILURE() << "no RssShmem in /proc/self/status";
  return 0;
}

class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime_ = *CreateFakeRuntime({.device_count = 2, .device_bytes = 8 * kMiB, .hooks = HooksOf(faults_)});
  }

  std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  std::unique_ptr<DeviceRuntime> runtime_;
};

TEST_F(FakeDevice, FakeDeviceAddress_FaultsOnHostAccess) {
  const DevicePtr memory = *runtime_->Allocate(0, kMiB);
  const uint64_t upper = memory.address >> 47;
  EXPECT_NE(upper, 0u);
  EXPECT_NE(upper, 0x1ffffu);
  EXPECT_DEATH(static_cast<void>(*reinterpret_cast<const volatile char*>(memory.address)), "");
}

TEST_F(FakeDevice, FakeDevices_HaveSeparateMemoryBudgets) {
  const DevicePtr first = *runtime_->Allocate(0, 6 * kMiB);
  EXPECT_EQ(runtime_->Allocate(0, 3 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(runtime_->Allocate(1, 8 * kMiB).ok());
  ASSERT_TRUE(runtime_->Free(first).ok());
  EXPECT_TRUE(runtime_->Allocate(0, 8 * kMiB).ok());
}

TEST_F(FakeDevice, Allocation_IsResidentBeforeAnyCopy) {
  const uint64_t before = ResidentSharedKiB();
  const DevicePtr memory = *runtime_->Allocate(0, 8 * kMiB);
  EXPECT_GE(ResidentSharedKiB(), before + 8 * 1024);
  EXPECT_TRUE(runtime_->Free(memory).ok());
  EXPECT_LT(ResidentSharedKiB(), before + 8 * 1024) << "what is freed is given back";
}

TEST(FakeDeviceMemory, LargeAllocation_IsResidentToItsLastByte) {
  const auto runtime = *CreateFakeRuntime({.device_count = 1, .device_bytes = 128 * kMiB});
  const uint64_t before = ResidentSharedKiB();
  const uint64_t bytes = 97 * kMiB + 4097;
  const DevicePtr memory = *runtime->Allocate(0, bytes);
  EXPECT_GE(ResidentSharedKiB(), before + bytes / 1024);
  EXPECT_TRUE(runtime->Free(memory).ok());
}

TEST_F(FakeDevice, InjectedAllocationFailures_CountDownAndTakeNoMemory) {
  faults_->fail_allocations = 2;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(runtime_->Allocate(0, kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(runtime_->Allocate(0, 8 * kMiB).ok());
}

TEST(DeviceFaultsFile, Faults_AreSharedByAllProcessesThatOpenTheFile) {
  const std::string path = ::testing::TempDir() + "/faults-" + NewUuid();
  const auto mine = OpenDeviceFaults(path);
  const auto others = OpenDeviceFaults(path);
  ASSERT_TRUE(mine.ok() && others.ok()) << mine.status() << others.status();
  const auto runtime =
      *CreateFakeRuntime({.device_count = 1, .device_bytes = 8 * kMiB, .hooks = HooksOf(*others)});
  EXPECT_TRUE(runtime->Allocate(0, kMiB).ok()) << "a new file has no faults";
  (*mine)->fail_allocations = 1;
  EXPECT_EQ(runtime->Allocate(0, kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ((*mine)->fail_allocations.load(), 0);
  EXPECT_TRUE(runtime->Allocate(0, kMiB).ok());
  EXPECT_EQ(unlink(path.c_str()), 0);
}

TEST_F(FakeDevice, InjectedCopyFailure_IsReportedOnceBySynchronize) {
  const DevicePtr memory = *runtime_->Allocate(0, kMiB);
  const auto stream = *runtime_->CreateStream(0);
  const std::vector<std::byte> sent = Pattern(1, kMiB);
  faults_->fail_copies = 1;
  EXPECT_TRUE(stream->CopyToDevice(memory, sent.data(), kMiB).ok());
  EXPECT_TRUE(stream->CopyToDevice(memory, sent.data(), 10).ok());
  const absl::Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "injected")) << status;
  EXPECT_TRUE(stream->Synchronize().ok());
  const auto seen = Download(*runtime_, memory, kMiB);
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ((*seen)[9], sent[9]) << "the copy after the failed one was done";
  EXPECT_EQ((*seen)[10], std::byte{0}) << "the failed one was not";
}

TEST_F(FakeDevice, CopyDelay_HoldsAsynchronousCopies) {
  const DevicePtr memory = *runtime_->Allocate(0, kMiB);
  ASSERT_TRUE(Upload(*runtime_, memory, Pattern(1, kMiB)).ok());
  std::vector<std::byte> received(kMiB);
  const auto stream = *runtime_->CreateStream(0);
  faults_->copy_delay_ns = int64_t{3600} * 1'000'000'000;
  ASSERT_TRUE(stream->CopyToHost(received.data(), memory, kMiB).ok());
  EXPECT_EQ(received, std::vector<std::byte>(kMiB)) << "an hour has not passed";
  faults_->copy_delay_ns = 0;
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(received, Pattern(1, kMiB));
}

TEST_F(FakeDevice, Free_RefusesMemoryUnderRunningCopy) {
  const DevicePtr memory = *runtime_->Allocate(0, kMiB);
  std::vector<std::byte> received(kMiB);
  const auto stream = *runtime_->CreateStream(0);
  faults_->copy_delay_ns = int64_t{3600} * 1'000'000'000;
  ASSERT_TRUE(stream->CopyToHost(received.data(), memory, kMiB).ok());
  EXPECT_EQ(runtime_->Free(memory).code(), absl::StatusCode::kFailedPrecondition);
  faults_->copy_delay_ns = 0;
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(runtime_->Free(memory).ok());
}

TEST_F(FakeDevice, CreateFakeRuntime_RefusesInvalidHardware) {
  EXPECT_FALSE(CreateFakeRuntime({.device_count = 0}).ok());
  EXPECT_FALSE(CreateFakeRuntime({.device_count = 65}).ok());
  EXPECT_FALSE(CreateFakeRuntime({.device_count = 1, .device_bytes = 0}).ok());
}

class FakeIpc : public FakeDevice {
 protected:
  void StartExporter(std::string_view role) {
    auto peer = IpcPeer::Start("fake", role);
    ASSERT_TRUE(peer.ok()) << peer.status();
    exporter_ = *std::move(peer);
    handle_ = HandleFromText(exporter_->ReadLine());
    ASSERT_GT(handle_.bytes, 0u);
  }

  std::unique_ptr<IpcPeer> exporter_;
  IpcHandle handle_;
};

TEST_F(FakeIpc, OpenedIpcMemory_StaysUsableAfterExporterIsKilled) {
  StartExporter("export");
  const auto memory = runtime_->OpenIpc(handle_);
  ASSERT_TRUE(memory.ok()) << memory.status();
  exporter_->Kill();
  EXPECT_EQ(Download(*runtime_, *memory, handle_.bytes).value_or(std::vector<std::byte>{}),
            Pattern(1, handle_.bytes));
  EXPECT_TRUE(Upload(*runtime_, *memory, Pattern(2, handle_.bytes)).ok());
  EXPECT_EQ(runtime_->Export(*memory).status().code(), absl::StatusCode::kInvalidArgument)
      << "what was imported is not ours to export";
  EXPECT_EQ(runtime_->Free(*memory).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(runtime_->CloseIpc(*memory).ok());
  EXPECT_EQ(runtime_->CloseIpc(*memory).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FakeIpc, OpenHandle_IsNotFoundWhenExporterIsGone) {
  StartExporter("export");
  EXPECT_EQ(exporter_->Finish(), 0);
  EXPECT_EQ(runtime_->OpenIpc(handle_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FakeIpc, OpenHandle_IsNotFoundWhenDescriptorNumberWasReused) {
  StartExporter("stale");
  EXPECT_EQ(runtime_->OpenIpc(handle_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FakeIpc, OpenIpc_RefusesForgedHandles) {
  StartExporter("export");
  const FakeIpcFields fields = *DecodeFakeIpc(handle_.opaque);
  FakeIpcFields other_memory = fields;
  other_memory.memory = NewUuid();
  FakeIpcFields its_input = fields;
  its_input.fd = 0;
  FakeIpcFields no_descriptor = fields;
  no_descriptor.fd = 1'000'000;
  FakeIpcFields no_process = fields;
  no_process.pid = 0x7fffffff;
  FakeIpcFields init = fields;
  init.pid = 1;
  for (const FakeIpcFields& forged : {other_memory, its_input, no_descriptor, no_process, init}) {
    IpcHandle handle = handle_;
    handle.opaque = EncodeFakeIpc(forged);
    EXPECT_EQ(runtime_->OpenIpc(handle).status().code(), absl::StatusCode::kNotFound);
  }
  for (const uint64_t bytes : {uint64_t{0}, handle_.bytes - 1, handle_.bytes + 1, ~uint64_t{0}}) {
    IpcHandle handle = handle_;
    handle.bytes = bytes;
    EXPECT_EQ(runtime_->OpenIpc(handle).status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_TRUE(runtime_->OpenIpc(handle_).ok()) << "the true one still opens";
}

TEST(NullRuntime, NullRuntime_HasNoDevicesAndRefusesTheirUse) {
  const auto runtime = CreateNullRuntime();
  EXPECT_EQ(runtime->backend(), "none");
  EXPECT_TRUE(runtime->devices().empty());
  std::byte byte;
  EXPECT_TRUE(runtime->RegisterHost(&byte, 1, HostAccess::kReadWrite).ok());
  EXPECT_TRUE(runtime->UnregisterHost(&byte).ok());
  EXPECT_EQ(runtime->Allocate(0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->CreateStream(0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->OpenIpc({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runtime->FindDevice("GPU-any").status().code(), absl::StatusCode::kNotFound);
}

TEST(CudaRuntime, CreateCudaRuntime_IsUnavailableWithoutGpu) {
  const auto runtime = CreateCudaRuntime();
  if (runtime.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(runtime.status().code(), absl::StatusCode::kUnavailable) << runtime.status();
  EXPECT_FALSE(runtime.status().message().empty());
}

}  // namespace
}  // namespace tensorcast::fake_device_test
