// The product's CUDA code with GPU memory that it did not allocate: memory of another library in the process
// can be copied out (a put of a framework's tensors); other memory cannot.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/device/device_runtime.h"
#include "core/device/testing/device_bytes.h"

namespace tensorcast {
namespace {

using testing::Pattern;

constexpr uint64_t kBytes = uint64_t{2} << 20;

class ForeignMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = CreateCudaRuntime();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    auto stream = runtime_->CreateStream(1);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    // As a framework does, which knows nothing of us.
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(memory_, bytes_.data(), kBytes, cudaMemcpyHostToDevice, own), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(own), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(own), cudaSuccess);
  }
  void TearDown() override {
    stream_.reset();
    cudaSetDevice(1);
    cudaFree(memory_);
  }

  DevicePtr there(int device = 1) const {
    return {.device = device, .address = reinterpret_cast<uint64_t>(memory_)};
  }
  absl::Status Read(DevicePtr from, uint64_t bytes) {
    if (absl::Status status = stream_->CopyToHost(read_.data(), from, bytes); !status.ok()) return status;
    return stream_->Synchronize();
  }

  const std::vector<std::byte> bytes_ = Pattern(7, kBytes);
  std::vector<std::byte> read_ = std::vector<std::byte>(2 * kBytes);
  std::unique_ptr<DeviceRuntime> runtime_;
  std::unique_ptr<Stream> stream_;
  void* memory_ = nullptr;
};

TEST_F(ForeignMemory, ForeignMemory_CanBeCopiedToHost) {
  const absl::Status status = Read(there() + 256, kBytes - 256);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::equal(bytes_.begin() + 256, bytes_.end(), read_.begin()));
}

TEST_F(ForeignMemory, CopyFromOutsideForeignMemory_IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Read(there(), kBytes + 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Read(there(/*device=*/0), kBytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(Read({.device = 1, .address = 4096}, 16)));
  // The host's own.
  EXPECT_TRUE(
      absl::IsInvalidArgument(Read({.device = 1, .address = reinterpret_cast<uint64_t>(bytes_.data())}, 16)));
  ASSERT_EQ(cudaFree(memory_), cudaSuccess);
  EXPECT_TRUE(absl::IsInvalidArgument(Read(there(), kBytes)));
  memory_ = nullptr;
}

TEST_F(ForeignMemory, ForeignMemory_CanNeitherBeWrittenNorDigested) {
  EXPECT_TRUE(absl::IsInvalidArgument(stream_->CopyToDevice(there(), bytes_.data(), kBytes)));
  DigestBytes digest;
  const DeviceRange range{.begin = there(), .bytes = kBytes};
  EXPECT_TRUE(absl::IsInvalidArgument(stream_->Digest({&range, 1}, {&digest, 1})));
}

// That ours ends there is known, whatever else lies behind it.
TEST_F(ForeignMemory, CopyBeyondOwnAllocation_IsRefused) {
  const auto own = runtime_->Allocate(1, kBytes);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(absl::IsInvalidArgument(Read(*own, kBytes + 1)));
  EXPECT_TRUE(runtime_->Free(*own).ok());
}

}  // namespace
}  // namespace tensorcast
