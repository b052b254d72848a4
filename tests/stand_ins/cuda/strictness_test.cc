// What the stand-in for the CUDA runtime does with mistakes that hardware may let pass, and with what breaks.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/device/change_kernel.h"
#include "core/device/digest_kernel.h"
#include "core/device/testing/device_faults.h"
#include "core/device/xxh3.h"
#include "tests/stand_ins/cuda/copy_engines.h"
#include "tests/stand_ins/cuda/host_gpus.h"

// What nvcc's objects call to say which kernels they have.
extern "C" void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*,
                                       dim3*, dim3*, int*);

namespace tensorcast::stand_ins {
namespace {

constexpr size_t kBytes = size_t{2} << 20;

// Each test is a process of its own (EXPECT_EXIT): the runtime reads its environment once, and what is broken
// stays broken.
#define IN_ITS_OWN_PROCESS(body)                      \
  EXPECT_EXIT(                                        \
      {                                               \
        body();                                       \
        _exit(::testing::Test::HasFailure() ? 1 : 0); \
      },                                              \
      ::testing::ExitedWithCode(0), "")

class Strictness : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void* Memory(size_t bytes = kBytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
  }
  static cudaStream_t NewStream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }
  static cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }
  static void Upload(void* to, cudaStream_t stream) {
    static std::vector<char>* const host = new std::vector<char>(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(to, host->data(), kBytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  }
  static void Download(void* from, cudaStream_t stream) {
    auto* const host = new std::vector<char>(kBytes);  // outlives the copy, whatever becomes of it
    EXPECT_EQ(cudaMemcpyAsync(host->data(), from, kBytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }
};

TEST_F(Strictness, HostAccessToDeviceMemory_KillsProcess) {
  EXPECT_EXIT(
      {
        volatile char* const memory = static_cast<char*>(Memory());
        *memory = 1;
      },
      [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }, "");
}

TEST_F(Strictness, UnorderedStreamsOnSameBytes_KillProcess) {
  EXPECT_DEATH(
      {
        void* const memory = Memory();
        Upload(memory, NewStream());
        Download(memory, NewStream());
      },
      "cuda stand-in: .*nothing says which comes first");
}

TEST_F(Strictness, EventBetweenStreams_OrdersThem) {
  IN_ITS_OWN_PROCESS([] {
    void* const memory = Memory();
    const cudaStream_t up = NewStream();
    const cudaStream_t down = NewStream();
    const cudaEvent_t uploaded = NewEvent();
    Upload(memory, up);
    EXPECT_EQ(cudaEventRecord(uploaded, up), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(down, uploaded, 0), cudaSuccess);
    Download(memory, down);
    EXPECT_EQ(cudaStreamSynchronize(down), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(uploaded), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  });
}

TEST_F(Strictness, FreeDuringCopy_KillsProcess) {
  EXPECT_DEATH(
      {
        void* const memory = Memory();
        Upload(memory, NewStream());
        cudaFree(memory);
      },
      "cuda stand-in: memory is given back while operation 1 of stream 1 writes");
}

TEST_F(Strictness, CallWithOtherCurrentDevice_KillsProcess) {
  EXPECT_DEATH(
      {
        void* const memory = Memory();
        cudaSetDevice(1);
        cudaFree(memory);
      },
      "cuda stand-in: cudaFree of the host's GPU 0 while the thread's current device is its GPU 1");
  EXPECT_DEATH(
      {
        void* const memory = Memory();
        const cudaStream_t stream = NewStream();
        cudaSetDevice(1);
        Upload(memory, stream);
      },
      "cudaMemcpyAsync on a stream of the host's GPU 0");
}

TEST_F(Strictness, IpcHandleOfPartialAllocationUnit_KillsProcess) {
  EXPECT_DEATH(
      {
        cudaIpcMemHandle_t handle;
        cudaIpcGetMemHandle(&handle, Memory(1 << 20));
      },
      "exposes whatever else lies in the last");
}

TEST_F(Strictness, UseOfDefaultStream_KillsProcess) {
  EXPECT_DEATH(Upload(Memory(), nullptr), "the default stream is used");
}

TEST_F(Strictness, ForkedChild_HasNoDevices) {
  IN_ITS_OWN_PROCESS([] {
    void* const memory = Memory();
    const pid_t child = fork();
    if (child == 0) {
      void* another = nullptr;
      _exit(cudaMalloc(&another, kBytes) == cudaErrorInitializationError ? 7 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(cudaFree(memory), cudaSuccess) << "the parent's are as they were";
  });
}

TEST_F(Strictness, MemoryOfKilledProcess_IsFreed) {
  EXPECT_EXIT(
      {
        Memory();
        kill(getpid(), SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  IN_ITS_OWN_PROCESS([] {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(free, total);
  });
}

TEST_F(Strictness, BrokenDevice_StaysBrokenAndOtherDeviceWorks) {
  const std::string path = ::testing::TempDir() + "/strictness-faults";
  setenv(kDeviceFaultsVariable, path.c_str(), 1);
  IN_ITS_OWN_PROCESS([&path] {
    const auto faults = OpenDeviceFaults(path);
    EXPECT_TRUE(faults.ok());
    (*faults)->poison_copies = 1;
    void* const memory = Memory();
    const cudaStream_t stream = NewStream();
    Upload(memory, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    void* another = nullptr;
    EXPECT_EQ(cudaMalloc(&another, kBytes), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&another, kBytes), cudaSuccess);
  });
  unsetenv(kDeviceFaultsVariable);
  unlink(path.c_str());
}

// The digest kernel, of one range.
class Launches : public Strictness {
 protected:
  static cudaError_t Launch(void* range, void* digest, cudaStream_t stream, int threads = xxh3::kLanes) {
    DigestBatch batch;
    batch.ranges[0] = {.address = reinterpret_cast<uint64_t>(range), .bytes = kBytes};
    batch.digests = reinterpret_cast<uint64_t>(digest);
    void* parameters[] = {&batch};
    return cudaLaunchKernel(&kStub, dim3(1), dim3(threads), parameters, /*sharedMem=*/0, stream);
  }
  static void Register() {
    __cudaRegisterFunction(nullptr, &kStub, nullptr, kDigestKernelName, -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
  }
  static constexpr char kStub = 0;
};

TEST_F(Launches, LaunchOfUnregisteredKernelOrWrongSize_Fails) {
  IN_ITS_OWN_PROCESS([] {
    void* const memory = Memory();
    const cudaStream_t stream = NewStream();
    EXPECT_EQ(Launch(memory, Memory(), stream), cudaErrorInvalidDeviceFunction);
    Register();
    Upload(memory, stream);
    EXPECT_EQ(Launch(memory, Memory(), stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  });
  EXPECT_DEATH(
      {
        Register();
        Launch(Memory(), Memory(), NewStream(), /*threads=*/32);
      },
      "is launched with 1 blocks of 32 threads");
}

TEST_F(Launches, KernelOnOtherGpusMemoryOrUnordered_KillsProcess) {
  EXPECT_DEATH(
      {
        Register();
        void* const memory = Memory();
        cudaSetDevice(1);
        Launch(memory, Memory(), NewStream());
      },
      "which is not memory that its GPU reaches");
  EXPECT_DEATH(
      {
        Register();
        void* const memory = Memory();
        Upload(memory, NewStream());
        Launch(memory, Memory(), NewStream());
      },
      "nothing says which comes first");
}

// The change kernel, of one block of bytes.
class ChangeLaunches : public Strictness {
 protected:
  static constexpr uint32_t kPlaces = 2;

  static cudaError_t Launch(void* begin, const void* lists, cudaStream_t stream) {
    ChangeBatch batch;
    batch.blocks[0] = {.begin = begin,
                       .places = static_cast<const uint16_t*>(lists),
                       .operands = static_cast<const uint16_t*>(lists) + kPlaces,
                       .count = kPlaces,
                       .elements = 16};
    void* parameters[] = {&batch};
    return cudaLaunchKernel(&kStub, dim3(1), dim3(kChangeLanes), parameters, /*sharedMem=*/0, stream);
  }
  // Host memory, with the places 1 and 3 and a value for each.
  static void* Lists(unsigned flags) {
    __cudaRegisterFunction(nullptr, &kStub, nullptr, kChangeKernelName, -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    static std::vector<uint16_t>* const lists = new std::vector<uint16_t>{1, 3, 0x0807};
    EXPECT_EQ(cudaHostRegister(lists->data(), lists->size() * sizeof(uint16_t), flags), cudaSuccess);
    return lists->data();
  }
  static void* OfDevice(void* lists) {
    void* seen = nullptr;
    EXPECT_EQ(cudaHostGetDevicePointer(&seen, lists, 0), cudaSuccess);
    return seen;
  }
  static constexpr char kStub = 0;
};

TEST_F(ChangeLaunches, MappedLists_AreReadByTheKernel) {
  IN_ITS_OWN_PROCESS([] {
    auto* const memory = static_cast<char*>(Memory());
    const cudaStream_t stream = NewStream();
    Upload(memory, stream);
    EXPECT_EQ(Launch(memory, OfDevice(Lists(cudaHostRegisterMapped)), stream), cudaSuccess);
    std::vector<char> bytes(4);
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(bytes, (std::vector<char>{0, 7, 0, 8}));
  });
}

TEST_F(ChangeLaunches, ListsThatDeviceCannotRead_KillProcess) {
  IN_ITS_OWN_PROCESS([] {
    void* seen = nullptr;
    EXPECT_EQ(cudaHostGetDevicePointer(&seen, Lists(cudaHostRegisterPortable), 0), cudaErrorInvalidValue);
  });
  EXPECT_DEATH(Launch(Memory(), Lists(cudaHostRegisterMapped), NewStream()), "its GPU reaches");
}

TEST_F(ChangeLaunches, ListsUnlockedDuringLaunch_KillProcess) {
  EXPECT_DEATH(
      {
        void* const lists = Lists(cudaHostRegisterMapped);
        Launch(Memory(), OfDevice(lists), NewStream());
        cudaHostUnregister(lists);
      },
      "memory is given back while operation 1 of stream 1 reads");
}

TEST_F(Strictness, CopyBetweenGpus_IsDirectOnlyForPeers) {
  const std::string timeline = ::testing::TempDir() + "/strictness-peers";
  setenv(kTimelineVariable, timeline.c_str(), 1);
  IN_ITS_OWN_PROCESS([&] {
    void* const from = Memory();
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    void* const to = Memory();
    const cudaStream_t stream = NewStream();
    const auto copy = [&] {
      EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    };
    copy();
    EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    copy();
    const auto entries = ReadTimeline(timeline).value();
    EXPECT_EQ(entries.size(), 3u);
    if (entries.size() != 3) return;
    EXPECT_EQ(entries[0].direction, CopyDirection::kToHost);
    EXPECT_EQ(entries[1].direction, CopyDirection::kToDevice);
    EXPECT_EQ(entries[2].direction, CopyDirection::kOnDevice);
  });
  unsetenv(kTimelineVariable);
  unlink(timeline.c_str());
}

TEST_F(Strictness, Timeline_ShowsSequentialCopiesAtConfiguredSpeed) {
  const std::string faults_path = ::testing::TempDir() + "/strictness-speeds";
  const std::string timeline = ::testing::TempDir() + "/strictness-timeline";
  setenv(kDeviceFaultsVariable, faults_path.c_str(), 1);
  setenv(kTimelineVariable, timeline.c_str(), 1);
  IN_ITS_OWN_PROCESS([&] {
    const auto faults = OpenDeviceFaults(faults_path);
    EXPECT_TRUE(faults.ok());
    (*faults)->bytes_per_second[static_cast<size_t>(CopyDirection::kToDevice)] = 40 * kBytes;
    void* const memory = Memory();
    const cudaStream_t stream = NewStream();
    Upload(memory, stream);
    Upload(memory, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const auto entries = ReadTimeline(timeline);
    EXPECT_TRUE(entries.ok());
    EXPECT_EQ(entries->size(), 2u);
    if (entries->size() != 2) return;
    EXPECT_GE(entries->front().end_ns - entries->front().begin_ns, 25'000'000) << "2 MiB at 80 MiB/s";
    EXPECT_GE(entries->back().begin_ns, entries->front().end_ns) << "one engine does one after the other";
    EXPECT_EQ(entries->front().pid, getpid());
    EXPECT_EQ(entries->front().bytes, kBytes);
  });
  unsetenv(kDeviceFaultsVariable);
  unsetenv(kTimelineVariable);
  unlink(faults_path.c_str());
  unlink(timeline.c_str());
}

}  // namespace
}  // namespace tensorcast::stand_ins
