#include "tools/workshop/model/compare.h"
#include "base/testing/temp_folder.h"

#include <gmock/gmock.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/artifact/layout.h"
#include "core/device/fake_device.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast::compare_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 1000;

// What a client would have attached: an image in this process, or one on a fake device.
class TestReplica {
 public:
  TestReplica(const ImageLayout& layout, std::vector<std::byte> image)
      : layout_(layout), image_(std::move(image)) {}

  void MoveTo(DevicePtr device) { device_ = device; }
  std::vector<std::byte>& bytes() { return image_; }

  std::vector<client::TensorView> tensors() const {
    std::vector<client::TensorView> views;
    for (const Tensor& tensor : layout_.tensors) {
      client::TensorView& view = views.emplace_back();
      view.name = tensor.name;
      view.dtype = tensor.dtype;
      view.shape = tensor.shape;
      view.nbytes = tensor.nbytes;
      if (device_) {
        view.device = device_ + tensor.offset;
      } else {
        view.host = std::span(image_).subspan(tensor.offset, tensor.nbytes);
      }
    }
    return views;
  }

 private:
  const ImageLayout layout_;
  std::vector<std::byte> image_;
  DevicePtr device_;
};

Tensor MakeTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = *TensorBytes(dtype, shape);
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .nbytes = bytes};
}

ImageLayout LayoutOf(std::vector<Tensor> tensors) {
  ImageLayout layout{.tensors = std::move(tensors)};
  EXPECT_TRUE(AssignOffsets(layout).ok());
  return layout;
}

class CompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = folder_.path() + "/m.safetensors";
    layout_ = LayoutOf({MakeTensor("a", DType::kU8, {kBytes}), MakeTensor("empty", DType::kF32, {0, 3}),
                        MakeTensor("b", DType::kF32, {kBytes / 4})});
    image_.resize(layout_.image_bytes);
    for (size_t i = 0; i < image_.size(); ++i) image_[i] = static_cast<std::byte>(i * 31);
    ASSERT_TRUE(WriteSafetensors(model_, layout_, {}, image_).ok());
  }

  // The bytes are the model's as long as the tensors before do not change their sizes.
  TestReplica WithTensors(std::vector<Tensor> tensors) const {
    const ImageLayout layout = LayoutOf(std::move(tensors));
    std::vector<std::byte> image = image_;
    image.resize(layout.image_bytes);
    return TestReplica(layout, std::move(image));
  }
  void ExpectDiffers(const TestReplica& replica, const std::string& what) {
    const absl::Status status = CompareReplica(replica.tensors(), model_, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  testing::TempFolder folder_;
  std::string model_;
  ImageLayout layout_;
  std::vector<std::byte> image_;
};

TEST_F(CompareTest, DifferentPadding_ReplicaStillEqualsModel) {
  TestReplica replica(layout_, image_);
  replica.bytes()[kBytes] ^= std::byte{1};  // behind "a"
  const absl::StatusOr<uint64_t> compared = CompareReplica(replica.tensors(), model_, nullptr);
  ASSERT_TRUE(compared.ok()) << compared.status();
  EXPECT_EQ(*compared, 2 * kBytes);
}

TEST_F(CompareTest, OneDifferentBit_IsReportedWithTensorAndByte) {
  for (const Tensor& tensor : layout_.tensors) {
    if (tensor.nbytes == 0) continue;
    TestReplica replica(layout_, image_);
    replica.bytes()[tensor.offset + kBytes - 1] ^= std::byte{0x80};
    ExpectDiffers(replica, "tensor \"" + tensor.name + "\" differs from the file at its byte 999");
  }
}

TEST_F(CompareTest, ExtraMissingOrRenamedTensor_IsReported) {
  std::vector<Tensor> tensors = layout_.tensors;
  tensors[1].name = "other";
  ExpectDiffers(WithTensors(tensors), "\"empty\" is not in the replica");
  tensors[1].name = "empty";
  tensors.push_back(MakeTensor("more", DType::kU8, {0}));
  ExpectDiffers(WithTensors(tensors), "the replica has 4 tensors");
  tensors.resize(2);
  ExpectDiffers(WithTensors(tensors), "the replica has 2 tensors");
}

TEST_F(CompareTest, ComparePart_RequiresExactlyTheNamedTensors) {
  const auto compare = [&](const std::vector<Tensor>& tensors, const std::vector<std::string>& names) {
    return ComparePart(WithTensors(tensors).tensors(), names, model_);
  };
  const std::vector<Tensor> first = {layout_.tensors[0]};
  EXPECT_EQ(compare(first, {"a"}).value_or(0), kBytes);
  EXPECT_EQ(compare(first, {"b"}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(compare(layout_.tensors, {"a"}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(compare(first, {"no such"}).status().code(), absl::StatusCode::kInvalidArgument);
  TestReplica wrong = WithTensors(first);
  wrong.bytes()[7] ^= std::byte{1};
  const std::vector<std::string> names = {"a"};
  EXPECT_THAT(ComparePart(wrong.tensors(), names, model_).status().ToString(), HasSubstr("at its byte 7"));
}

TEST_F(CompareTest, SameBytesWithOtherDtypeOrShape_AreReported) {
  std::vector<Tensor> tensors = layout_.tensors;
  tensors[0].dtype = DType::kI8;
  ExpectDiffers(WithTensors(tensors), "\"a\" has another dtype or shape");
  tensors = layout_.tensors;
  tensors[2].shape = {2, kBytes / 8};
  ExpectDiffers(WithTensors(tensors), "\"b\" has another dtype or shape");
}

TEST_F(CompareTest, ReplicaOnDevice_IsReadBackAndCompared) {
  const auto devices = *CreateFakeRuntime({.device_count = 1, .device_bytes = uint64_t{16} << 20});
  const DevicePtr memory = *devices->Allocate(0, layout_.image_bytes);
  const auto stream = *devices->CreateStream(0);
  const auto upload = [&](const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(stream->CopyToDevice(memory, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  };
  TestReplica replica(layout_, image_);
  replica.MoveTo(memory);
  upload(image_);
  EXPECT_TRUE(CompareReplica(replica.tensors(), model_, devices.get()).ok());
  EXPECT_EQ(CompareReplica(replica.tensors(), model_, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
  image_[3] ^= std::byte{4};
  upload(image_);
  EXPECT_THAT(CompareReplica(replica.tensors(), model_, devices.get()).status().ToString(),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("at its byte 3")));
  EXPECT_TRUE(devices->Free(memory).ok());
}

TEST_F(CompareTest, ContextCancelled_ComparisonEnds) {
  RequestContext context;
  context.cancellation.Cancel();
  EXPECT_EQ(CompareReplica(TestReplica(layout_, image_).tensors(), model_, nullptr, context).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tensorcast::compare_test
