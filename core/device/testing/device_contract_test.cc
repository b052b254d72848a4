// What every device backend must do. The fake always runs it; CUDA where there is a GPU.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/artifact/digest.h"
#include "core/device/device_runtime.h"
#include "core/device/testing/ipc_peer.h"
#include "core/difference/element_order.h"

namespace tensorcast::device_contract_test {
namespace {

using testing::Download;
using testing::IpcPeer;
using testing::Pattern;
using testing::Upload;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class DeviceContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto runtime = testing::MakeRuntime(GetParam());
    if (absl::IsUnavailable(runtime.status())) {
      GTEST_SKIP() << "no device of this backend: " << runtime.status();
    }
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
  }

  DevicePtr MustAllocate(uint64_t bytes, int device = 0) {
    auto pointer = runtime_->Allocate(device, bytes);
    EXPECT_TRUE(pointer.ok()) << pointer.status();
    return pointer.value_or(DevicePtr{});
  }

  std::unique_ptr<Stream> MustCreateStream(int device = 0) {
    auto stream = runtime_->CreateStream(device);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  void TearDown() override {
    for (const auto& [base, bytes] : locked_) {
      EXPECT_TRUE(runtime_->UnregisterHost(base).ok());
      munmap(base, bytes);
    }
  }

  // Page-locked until the end of the test.
  std::byte* MustLock(uint64_t bytes) {
    void* const pages =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    EXPECT_NE(pages, MAP_FAILED);
    auto* const host = static_cast<std::byte*>(pages);
    EXPECT_TRUE(runtime_->RegisterHost(host, bytes, HostAccess::kReadWrite).ok());
    locked_.emplace_back(host, bytes);
    return host;
  }

  // Changes of a block, with the lists in page-locked memory of their own.
  template <typename Operand>
  ElementChanges ChangesOf(DevicePtr begin, uint32_t elements, uint32_t width, ElementChanges::Kind kind,
                           const std::vector<uint16_t>& places, const std::vector<Operand>& operands) {
    const uint64_t operands_at = (places.size() * sizeof(uint16_t) + 7) / 8 * 8;
    std::byte* const lists = MustLock(operands_at + operands.size() * sizeof(Operand));
    std::memcpy(lists, places.data(), places.size() * sizeof(uint16_t));
    std::memcpy(lists + operands_at, operands.data(), operands.size() * sizeof(Operand));
    return {.begin = begin,
            .elements = elements,
            .width = width,
            .kind = kind,
            .places = {reinterpret_cast<const uint16_t*>(lists), places.size()},
            .operands = lists + operands_at};
  }

  // What is there arrives on a device.
  void ExpectCopied(const std::byte* host, const std::vector<std::byte>& sent) {
    const DevicePtr memory = MustAllocate(sent.size());
    const auto stream = MustCreateStream();
    ASSERT_TRUE(stream->CopyToDevice(memory, host, sent.size()).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(Download(*runtime_, memory, sent.size()).value_or(std::vector<std::byte>{}), sent);
  }

  std::unique_ptr<DeviceRuntime> runtime_;
  std::vector<std::pair<std::byte*, uint64_t>> locked_;
};

TEST_P(DeviceContract, Devices_HaveUniqueUuidsAndConsecutiveOrdinals) {
  EXPECT_EQ(runtime_->backend(), GetParam());
  ASSERT_FALSE(runtime_->devices().empty());
  std::set<std::string> uuids;
  int ordinal = 0;
  for (const DeviceInfo& device : runtime_->devices()) {
    EXPECT_EQ(device.ordinal, ordinal++);
    EXPECT_GT(device.total_bytes, 0u);
    EXPECT_FALSE(device.name.empty());
    EXPECT_EQ(device.uuid.size(), device.uuid.find('-') + 1 + 36) << device.uuid;
    uuids.insert(device.uuid);
    EXPECT_EQ(runtime_->FindDevice(device.uuid).value_or(-1), device.ordinal);
  }
  EXPECT_EQ(uuids.size(), runtime_->devices().size());
  EXPECT_EQ(runtime_->FindDevice("GPU-none").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(DeviceContract, CopyToOnAndFromDevice_KeepsBytes) {
  const uint64_t bytes = 3 * kMiB + 17;
  const DevicePtr first = MustAllocate(bytes + 5);
  const DevicePtr second = MustAllocate(bytes + 9);
  const std::vector<std::byte> sent = Pattern(3, bytes);
  std::vector<std::byte> received(bytes);
  const auto stream = MustCreateStream();
  ASSERT_TRUE(stream->CopyToDevice(first + 5, sent.data(), bytes).ok());
  ASSERT_TRUE(stream->CopyOnDevice(second + 9, first + 5, bytes).ok());
  ASSERT_TRUE(stream->CopyToHost(received.data(), second + 9, bytes).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(runtime_->Free(first).ok());
  EXPECT_TRUE(runtime_->Free(second).ok());
}

TEST_P(DeviceContract, StreamCopies_RunInOrder) {
  const DevicePtr memory = MustAllocate(kMiB);
  const std::vector<std::byte> odd = Pattern(1, kMiB);
  const std::vector<std::byte> even = Pattern(2, kMiB);
  std::vector<std::vector<std::byte>> seen(20, std::vector<std::byte>(kMiB));
  const auto stream = MustCreateStream();
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_TRUE(stream->CopyToDevice(memory, (i % 2 ? odd : even).data(), kMiB).ok());
    ASSERT_TRUE(stream->CopyToHost(seen[i].data(), memory, kMiB).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i % 2 ? odd : even) << i;
}

TEST_P(DeviceContract, Event_WaitsForCopiesEnqueuedBefore) {
  const DevicePtr memory = MustAllocate(kMiB);
  const std::vector<std::byte> odd = Pattern(1, kMiB);
  const std::vector<std::byte> even = Pattern(2, kMiB);
  std::vector<std::byte> seen_odd(kMiB);
  std::vector<std::byte> seen_even(kMiB);
  const auto stream = MustCreateStream();
  const auto nothing = stream->Record();
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE((*nothing)->Await().ok());
  ASSERT_TRUE(stream->CopyToDevice(memory, odd.data(), kMiB).ok());
  ASSERT_TRUE(stream->CopyToHost(seen_odd.data(), memory, kMiB).ok());
  const auto first = stream->Record();
  ASSERT_TRUE(stream->CopyToDevice(memory, even.data(), kMiB).ok());
  ASSERT_TRUE(stream->CopyToHost(seen_even.data(), memory, kMiB).ok());
  const auto second = stream->Record();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*first)->Await().ok());
  EXPECT_EQ(seen_odd, odd);
  EXPECT_TRUE((*second)->Await().ok());
  EXPECT_EQ(seen_even, even);
  EXPECT_TRUE((*first)->Await().ok()) << "as often as one likes";
  EXPECT_TRUE(runtime_->Free(memory).ok()) << "nothing uses it any more";
}

TEST_P(DeviceContract, IsIdle_TurnsTrueWhenCopiesAreDone) {
  const DevicePtr memory = MustAllocate(kMiB);
  const std::vector<std::byte> sent = Pattern(7, kMiB);
  std::vector<std::byte> received(kMiB);
  const auto stream = MustCreateStream();
  EXPECT_TRUE(stream->IsIdle().value());
  ASSERT_TRUE(stream->CopyToDevice(memory, sent.data(), kMiB).ok());
  ASSERT_TRUE(stream->CopyToHost(received.data(), memory, kMiB).ok());
  absl::StatusOr<bool> idle = false;
  while (idle.ok() && !*idle) idle = stream->IsIdle();  // CTest's limit is the deadline
  ASSERT_TRUE(idle.ok()) << idle.status();
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(runtime_->Free(memory).ok()) << "nothing uses it any more";
}

TEST_P(DeviceContract, LendStream_RefusesMemoryPastTheAllocation) {
  const DevicePtr memory = MustAllocate(kMiB);
  const auto stream = MustCreateStream();
  int used = 0;
  const auto use = [&used](void* lent) {
    EXPECT_NE(lent, nullptr);
    ++used;
    return absl::OkStatus();
  };
  const absl::Status lent = stream->Lend(memory, kMiB, use);
  if (absl::IsUnimplemented(lent)) GTEST_SKIP() << lent;
  EXPECT_TRUE(lent.ok()) << lent;
  EXPECT_TRUE(stream->Lend({}, 0, use).ok());
  EXPECT_EQ(stream->Lend(memory + 1, kMiB, use).code(), kInvalid);
  EXPECT_EQ(used, 2);
}

TEST_P(DeviceContract, StreamDestructor_WaitsForCopies) {
  const uint64_t bytes = 8 * kMiB;
  const DevicePtr memory = MustAllocate(bytes);
  const std::vector<std::byte> sent = Pattern(4, bytes);
  std::vector<std::byte> received(bytes);
  {
    const auto stream = MustCreateStream();
    ASSERT_TRUE(stream->CopyToDevice(memory, sent.data(), bytes).ok());
    ASSERT_TRUE(stream->CopyToHost(received.data(), memory, bytes).ok());
  }
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, Streams_WorkConcurrentlyOnSeveralThreads) {
  std::vector<std::thread> threads;
  for (uint8_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      const DevicePtr memory = MustAllocate(kMiB);
      for (int round = 0; round < 5; ++round) {
        const std::vector<std::byte> sent = Pattern(i * 5 + round, kMiB);
        ASSERT_TRUE(Upload(*runtime_, memory, sent).ok());
        const auto received = Download(*runtime_, memory, kMiB);
        ASSERT_TRUE(received.ok()) << received.status();
        ASSERT_EQ(*received, sent);
      }
      EXPECT_TRUE(runtime_->Free(memory).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceContract, CopyOnDevice_CopiesBetweenDevices) {
  const int last = static_cast<int>(runtime_->devices().size()) - 1;  // on a host with one GPU, the same
  const DevicePtr here = MustAllocate(kMiB, 0);
  const DevicePtr there = MustAllocate(kMiB, last);
  ASSERT_TRUE(Upload(*runtime_, here, Pattern(5, kMiB)).ok());
  const auto stream = MustCreateStream(last);
  ASSERT_TRUE(stream->CopyOnDevice(there, here, kMiB).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(Download(*runtime_, there, kMiB).value_or(std::vector<std::byte>{}), Pattern(5, kMiB));
}

TEST_P(DeviceContract, Digest_DigestsRangesAfterEnqueuedCopies) {
  const uint64_t bytes = 3 * kMiB + 17;
  const int last = static_cast<int>(runtime_->devices().size()) - 1;
  const DevicePtr here = MustAllocate(bytes, 0);
  const DevicePtr there = MustAllocate(bytes, last);
  const std::vector<std::byte> sent = Pattern(9, bytes);
  ASSERT_TRUE(Upload(*runtime_, here, sent).ok());
  const auto stream = MustCreateStream(last);
  std::vector<DeviceRange> ranges;
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{0, bytes}, {1, 0}, {7, 1}, {64, 240}}) {
    ranges.push_back({.begin = there + offset, .bytes = length});
  }
  // More than any backend digests at once.
  for (uint64_t i = 0; i < 300; ++i) ranges.push_back({.begin = there + 5000 * i + i % 16, .bytes = 5000});
  std::vector<DigestBytes> digests(ranges.size());
  ASSERT_TRUE(stream->CopyOnDevice(there, here, bytes).ok());
  const absl::Status enqueued = stream->Digest(ranges, digests);
  if (!runtime_->devices()[last].runs_kernels) {
    EXPECT_EQ(enqueued.code(), absl::StatusCode::kUnimplemented);
    return;
  }
  ASSERT_TRUE(enqueued.ok()) << enqueued;
  ASSERT_TRUE(stream->Synchronize().ok());
  for (size_t i = 0; i < ranges.size(); ++i) {
    const uint64_t offset = ranges[i].begin.address - there.address;
    EXPECT_EQ(digests[i], ComputeDigest(std::span(sent).subspan(offset, ranges[i].bytes)).bytes) << i;
  }
}

TEST_P(DeviceContract, Digest_RefusesRangesPastMemoryOrOnOtherDevice) {
  const DevicePtr memory = MustAllocate(kMiB);
  const auto stream = MustCreateStream();
  std::vector<DigestBytes> digests(1);
  const auto digest = [&](DevicePtr begin, uint64_t bytes) {
    const DeviceRange range = {.begin = begin, .bytes = bytes};
    return stream->Digest(std::span(&range, 1), digests).code();
  };
  EXPECT_EQ(digest(memory + 1, kMiB), kInvalid);
  EXPECT_EQ(digest({}, 1), kInvalid);
  EXPECT_EQ(digest({.device = memory.device + 1, .address = memory.address}, 1), kInvalid);
  EXPECT_EQ(stream->Digest({}, digests).code(), kInvalid) << "no range for the digest";
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_P(DeviceContract, Change_SetsValuesAndTakesSteps) {
  using Kind = ElementChanges::Kind;
  constexpr uint32_t kElements = ElementChanges::kMaxElements;
  // Neighbours, both ends, and more than one turn of any kernel's threads.
  std::vector<uint16_t> places = {0, 1, 2, 3, 7, 31, 32, kElements - 1};
  for (uint16_t place = 100; place < 1100; ++place) places.push_back(place);
  const auto stream = MustCreateStream();
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    WithElementType(width, [&]<typename U>(U) {
      const std::vector<std::byte> image = Pattern(11, kElements * sizeof(U));
      std::vector<std::byte> expected = image;
      std::vector<U> values;
      std::vector<uint8_t> steps;
      std::vector<uint16_t> others;  // which take steps, in the same call
      for (const uint16_t place : places) {
        values.push_back(static_cast<U>(0x9e3779b97f4a7c15 * (place + 1)));
        StoreElement<U>(&expected[place * sizeof(U)], values.back());
        others.push_back(static_cast<uint16_t>(place ^ 0x8000));
        steps.push_back(static_cast<uint8_t>(place % kEscapedStep));
        std::byte* const element = &expected[others.back() * sizeof(U)];
        StoreElement<U>(element, TakeStep<U>(LoadElement<U>(element), steps.back()));
      }
      const DevicePtr memory = MustAllocate(image.size());
      ASSERT_TRUE(stream->CopyToDevice(memory, image.data(), image.size()).ok());
      const ElementChanges blocks[] = {ChangesOf(memory, kElements, width, Kind::kValues, places, values),
                                       ChangesOf(memory, kElements, width, Kind::kSteps, others, steps)};
      const absl::Status enqueued = stream->Change(blocks);
      if (!runtime_->devices().front().runs_kernels) {
        EXPECT_EQ(enqueued.code(), absl::StatusCode::kUnimplemented);
        return;
      }
      ASSERT_TRUE(enqueued.ok()) << enqueued;
      ASSERT_TRUE(stream->Synchronize().ok());
      EXPECT_TRUE(Download(*runtime_, memory, image.size()).value_or(std::vector<std::byte>{}) == expected)
          << width;
      EXPECT_TRUE(runtime_->Free(memory).ok());
    });
  }
}

TEST_P(DeviceContract, ManyChangedBlocks_ChangeOnlyTheirOwnElements) {
  if (!runtime_->devices().front().runs_kernels) GTEST_SKIP() << "this device runs no kernels";
  constexpr uint32_t kElements = 16;
  constexpr uint32_t kBlocks = 300;  // more than any backend changes at once
  std::vector<std::byte> expected(kBlocks * kElements, std::byte{5});
  const DevicePtr memory = MustAllocate(expected.size());
  ASSERT_TRUE(Upload(*runtime_, memory, expected).ok());
  // The last two places are past the end of every block.
  const ElementChanges first = ChangesOf(memory, kElements, /*width=*/1, ElementChanges::Kind::kValues,
                                         {3, 15, 16, 0xffff}, std::vector<uint8_t>{1, 2, 3, 4});
  std::vector<ElementChanges> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(first);
    blocks.back().begin = memory + i * kElements;
    expected[i * kElements + 3] = std::byte{1};
    expected[i * kElements + 15] = std::byte{2};
  }
  blocks.push_back({.begin = memory});  // of no elements
  const auto stream = MustCreateStream();
  ASSERT_TRUE(stream->Change(blocks).ok());
  blocks.clear();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(Download(*runtime_, memory, expected.size()).value_or(std::vector<std::byte>{}) == expected);
}

TEST_P(DeviceContract, Change_RefusesMemoryThatDeviceCannotUse) {
  const DevicePtr memory = MustAllocate(kMiB);
  const auto stream = MustCreateStream();
  const ElementChanges good =
      ChangesOf(memory, 16, /*width=*/4, ElementChanges::Kind::kValues, {1, 2}, std::vector<uint32_t>{7, 8});
  const auto changed = [&](auto&& damage) {
    ElementChanges block = good;
    damage(block);
    return stream->Change({&block, 1}).code();
  };
  const std::vector<uint16_t> pageable = {1, 2};
  const std::vector<std::byte> pageable_values(8);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.places = pageable; }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.operands = pageable_values.data(); }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.places = {b.places.data(), kMiB}; }), kInvalid)
      << "past the locked memory";
  EXPECT_EQ(changed([&](ElementChanges& b) { b.operands += 2; }), kInvalid) << "not aligned";
  EXPECT_EQ(changed([&](ElementChanges& b) { b.begin = memory + 2; }), kInvalid) << "not aligned";
  EXPECT_EQ(changed([&](ElementChanges& b) { b.begin = memory + (kMiB - 4); }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { ++b.begin.device; }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.width = 3; }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.width = 16; }), kInvalid);
  EXPECT_EQ(changed([&](ElementChanges& b) { b.elements = ElementChanges::kMaxElements + 1; }), kInvalid);
  EXPECT_TRUE(stream->Synchronize().ok()) << "what was refused was not enqueued";
}

TEST_P(DeviceContract, FullDevice_RefusesAllocationAndStaysUsable) {
  const uint64_t total = runtime_->devices()[0].total_bytes;
  const absl::Status status = runtime_->Allocate(0, total + kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "free")) << status;
  const DevicePtr memory = MustAllocate(kMiB);
  EXPECT_TRUE(Upload(*runtime_, memory, Pattern(1, kMiB)).ok());
}

TEST_P(DeviceContract, FreedMemory_CanBeAllocatedAgain) {
  const uint64_t max = std::min<uint64_t>(runtime_->devices()[0].total_bytes / 2, 1024 * kMiB);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(runtime_->Free(MustAllocate(max)).ok());
}

TEST_P(DeviceContract, UnknownDeviceAndEmptyAllocation_AreRefused) {
  const int beyond = static_cast<int>(runtime_->devices().size());
  for (const int device : {-1, beyond}) {
    EXPECT_EQ(runtime_->Allocate(device, kMiB).status().code(), kInvalid);
    EXPECT_EQ(runtime_->CreateStream(device).status().code(), kInvalid);
  }
  EXPECT_EQ(runtime_->Allocate(0, 0).status().code(), kInvalid);
}

TEST_P(DeviceContract, MakeCurrent_AcceptsOnlyKnownDevices) {
  for (const DeviceInfo& device : runtime_->devices()) {
    EXPECT_TRUE(runtime_->MakeCurrent(device.ordinal).ok());
  }
  for (const int device : {-1, static_cast<int>(runtime_->devices().size())}) {
    EXPECT_EQ(runtime_->MakeCurrent(device).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(DeviceContract, Free_AcceptsOnlyOwnAllocationsOnce) {
  const DevicePtr memory = MustAllocate(kMiB);
  EXPECT_EQ(runtime_->Free(memory + 4096).code(), kInvalid);
  EXPECT_EQ(runtime_->Free({.device = memory.device + 1, .address = memory.address}).code(), kInvalid);
  EXPECT_EQ(runtime_->Free({}).code(), kInvalid);
  EXPECT_TRUE(runtime_->Free(memory).ok());
  EXPECT_EQ(runtime_->Free(memory).code(), kInvalid);
}

TEST_P(DeviceContract, StreamCopy_RefusesRangesOutsideAllocations) {
  const DevicePtr memory = MustAllocate(kMiB);
  const DevicePtr freed = MustAllocate(kMiB);
  ASSERT_TRUE(runtime_->Free(freed).ok());
  std::vector<std::byte> host(2 * kMiB);
  const auto stream = MustCreateStream();
  EXPECT_EQ(stream->CopyToHost(host.data(), memory, kMiB + 1).code(), kInvalid);
  EXPECT_EQ(stream->CopyToHost(host.data(), memory + 1, kMiB).code(), kInvalid);
  EXPECT_EQ(stream->CopyToHost(host.data(), memory + kMiB, ~uint64_t{0}).code(), kInvalid);
  EXPECT_EQ(stream->CopyToDevice(memory + 2 * kMiB, host.data(), 1).code(), kInvalid);
  EXPECT_EQ(stream->CopyToDevice(freed, host.data(), 1).code(), kInvalid);
  EXPECT_EQ(stream->CopyOnDevice(memory, freed, 1).code(), kInvalid);
  EXPECT_EQ(stream->CopyOnDevice(freed, memory, 1).code(), kInvalid);
  EXPECT_EQ(stream->CopyToDevice({}, host.data(), 1).code(), kInvalid);
  EXPECT_TRUE(stream->CopyToHost(host.data(), memory, 0).ok()) << "nothing can be copied anywhere";
  EXPECT_TRUE(stream->Synchronize().ok()) << "what was refused was not enqueued";
}

TEST_P(DeviceContract, RegisterHost_RefusesMemoryRegisteredBefore) {
  const uint64_t bytes = 4 * kMiB;
  auto* host = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(host, MAP_FAILED);
  ASSERT_TRUE(runtime_->RegisterHost(host, bytes, HostAccess::kReadWrite).ok());
  EXPECT_EQ(runtime_->RegisterHost(host, bytes, HostAccess::kReadWrite).code(),
            absl::StatusCode::kAlreadyExists);

  const std::vector<std::byte> sent = Pattern(6, bytes);
  std::memcpy(host, sent.data(), bytes);
  ExpectCopied(host, sent);

  EXPECT_TRUE(runtime_->UnregisterHost(host).ok());
  EXPECT_EQ(runtime_->UnregisterHost(host).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(runtime_->RegisterHost(nullptr, bytes, HostAccess::kReadWrite).code(), kInvalid);
  munmap(host, bytes);
}

TEST_P(DeviceContract, RegisterHost_AcceptsReadOnlyMemory) {
  if (!runtime_->devices().front().locks_read_only) GTEST_SKIP() << "this device cannot";
  const uint64_t bytes = 4 * kMiB;
  auto* host = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(host, MAP_FAILED);
  const std::vector<std::byte> sent = Pattern(6, bytes);
  std::memcpy(host, sent.data(), bytes);
  ASSERT_EQ(mprotect(host, bytes, PROT_READ), 0);
  ASSERT_TRUE(runtime_->RegisterHost(host, bytes, HostAccess::kReadOnly).ok());
  ExpectCopied(host, sent);
  EXPECT_TRUE(runtime_->UnregisterHost(host).ok());
  munmap(host, bytes);
}

TEST_P(DeviceContract, ExportedMemory_IsReadAndWrittenByAnotherProcess) {
  const uint64_t bytes = 4 * kMiB;
  const DevicePtr memory = MustAllocate(bytes);
  ASSERT_TRUE(Upload(*runtime_, memory, Pattern(1, bytes)).ok());
  const auto handle = runtime_->Export(memory);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->device_uuid, runtime_->devices()[0].uuid);
  EXPECT_EQ(handle->bytes, bytes);
  EXPECT_LE(handle->opaque.size(), 255u);

  const auto peer = IpcPeer::Start(GetParam(), "import", *handle);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->ReadLine(), "done");
  EXPECT_EQ((*peer)->Finish(), 0);
  EXPECT_EQ(Download(*runtime_, memory, bytes).value_or(std::vector<std::byte>{}), Pattern(2, bytes));
  EXPECT_TRUE(runtime_->Free(memory).ok());
}

TEST_P(DeviceContract, Export_AcceptsOnlyWholeOwnAllocations) {
  const DevicePtr memory = MustAllocate(4 * kMiB);
  EXPECT_EQ(runtime_->Export(memory + 4096).status().code(), kInvalid);
  EXPECT_EQ(runtime_->Export({}).status().code(), kInvalid);
  ASSERT_TRUE(runtime_->Free(memory).ok());
  EXPECT_EQ(runtime_->Export(memory).status().code(), kInvalid);
}

TEST_P(DeviceContract, OpenIpc_RefusesHandleOfOwnProcess) {
  const auto handle = runtime_->Export(MustAllocate(4 * kMiB));
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(runtime_->OpenIpc(*handle).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(DeviceContract, OpenIpc_RefusesMalformedHandlesAndUnknownDevices) {
  const auto handle = runtime_->Export(MustAllocate(4 * kMiB));
  ASSERT_TRUE(handle.ok()) << handle.status();
  for (const std::string& opaque :
       {std::string(), std::string(255, 'x'), handle->opaque.substr(1),
        handle->opaque.substr(0, handle->opaque.size() - 1), handle->opaque + "x"}) {
    IpcHandle changed = *handle;
    changed.opaque = opaque;
    EXPECT_EQ(runtime_->OpenIpc(changed).status().code(), kInvalid) << opaque.size();
  }
  IpcHandle elsewhere = *handle;
  elsewhere.device_uuid = "GPU-00000000-0000-0000-0000-000000000000";
  EXPECT_EQ(runtime_->OpenIpc(elsewhere).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(DeviceContract, CloseIpc_AcceptsOnlyOpenedMemory) {
  const DevicePtr memory = MustAllocate(kMiB);
  EXPECT_EQ(runtime_->CloseIpc(memory).code(), kInvalid);
  EXPECT_EQ(runtime_->CloseIpc({}).code(), kInvalid);
  EXPECT_TRUE(runtime_->Free(memory).ok());
}

auto BackendName = [](const auto& info) { return std::string(info.param); };
INSTANTIATE_TEST_SUITE_P(Fake, DeviceContract, ::testing::Values("fake"), BackendName);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::Values("cuda"), BackendName);

}  // namespace
}  // namespace tensorcast::device_contract_test
