#include "client/put_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "core/device/fake_device.h"

namespace tensorcast::client::put_image_test {
namespace {

std::vector<std::byte> Bytes(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed + 1);
  return bytes;
}

PutTensor Tensor(const std::string& name, std::span<const std::byte> bytes) {
  return {.name = name, .dtype = DType::kU8, .shape = {bytes.size()}, .bytes = bytes};
}

// The image in pieces of so many bytes, written into memory that was full of something else.
std::vector<std::byte> InPieces(const PutImage& image, size_t piece_bytes) {
  std::vector<std::byte> whole(image.layout().image_bytes, std::byte{0xee});
  for (size_t at = 0; at < whole.size(); at += piece_bytes) {
    const auto to = std::span(whole).subspan(at, std::min(piece_bytes, whole.size() - at));
    EXPECT_TRUE(image.Write(0, at, to).ok());
  }
  return whole;
}

TEST(PutImage, PiecesOfAnySize_MakeUpTheSameImage) {
  const std::vector<std::byte> a = Bytes(5, 1), b = Bytes(256, 2), c = Bytes(1000, 3);
  const PutTensor tensors[] = {Tensor("a", a), Tensor("none", {}), Tensor("b", b), Tensor("c", c)};
  const auto image = PutImage::Create(tensors, nullptr, 1);
  ASSERT_TRUE(image.ok()) << image.status();
  std::vector<std::byte> expected(image->layout().image_bytes);
  std::ranges::copy(a, expected.begin());
  std::ranges::copy(b, expected.begin() + 256);
  std::ranges::copy(c, expected.begin() + 512);
  for (const size_t piece_bytes : {1, 7, 256, 300, 4096}) {
    EXPECT_EQ(InPieces(*image, piece_bytes), expected) << piece_bytes;
  }
}

TEST(PutImage, TensorsOnDevice_AreCopiedIntoPutImage) {
  auto devices = *CreateFakeRuntime({.device_count = 2, .device_bytes = 4 << 20});
  const std::vector<std::byte> host = Bytes(300, 1), first = Bytes(1000, 2), second = Bytes(77, 3);
  std::vector<PutTensor> tensors = {Tensor("host", host)};
  for (int device = 0; device < 2; ++device) {
    const std::vector<std::byte>& bytes = device == 0 ? first : second;
    const DevicePtr memory = *devices->Allocate(device, bytes.size());
    const auto stream = *devices->CreateStream(device);
    ASSERT_TRUE(stream->CopyToDevice(memory, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    PutTensor tensor = Tensor(device == 0 ? "first" : "second", bytes);
    tensor.bytes = {};
    tensor.device = memory;
    tensors.push_back(tensor);
  }
  {
    const auto image = PutImage::Create(tensors, devices.get(), 1);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(image->on_devices());
    std::vector<std::byte> expected(image->layout().image_bytes);
    std::ranges::copy(host, expected.begin());
    std::ranges::copy(first, expected.begin() + 512);
    std::ranges::copy(second, expected.begin() + 512 + 1024);
    for (const size_t piece_bytes : {100, 512, 4096}) {
      EXPECT_EQ(InPieces(*image, piece_bytes), expected) << piece_bytes;
    }
  }
  for (const PutTensor& tensor : tensors) {
    if (!tensor.device) continue;
    EXPECT_TRUE(devices->Free(tensor.device).ok());
  }
}

TEST(PutImage, PutOfInvalidTensors_IsRefusedByName) {
  const std::vector<std::byte> bytes = Bytes(5, 1);
  const PutTensor repeated[] = {Tensor("twin", bytes), Tensor("twin", bytes)};
  PutTensor both = Tensor("both", bytes);
  both.device = {0, 4096};
  PutTensor short_of = Tensor("short", bytes);
  short_of.shape = {6};
  PutTensor on_gpu = both;
  on_gpu.bytes = {};
  const auto refused = [](std::span<const PutTensor> tensors, absl::StatusCode code, std::string_view said) {
    const absl::Status status = PutImage::Create(tensors, nullptr, 1).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), said)) << status;
  };
  refused(repeated, absl::StatusCode::kInvalidArgument, "twin");
  refused({&both, 1}, absl::StatusCode::kInvalidArgument, "both");
  refused({&short_of, 1}, absl::StatusCode::kInvalidArgument, "short");
  refused({&on_gpu, 1}, absl::StatusCode::kFailedPrecondition, "ClientOptions::devices");
}

}  // namespace
}  // namespace tensorcast::client::put_image_test
