#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "base/testing/temp_folder.h"
#include "core/safetensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::writer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

Tensor MakeTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = *TensorBytes(dtype, shape);
  return Tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .nbytes = bytes};
}

ImageLayout LayoutOf(std::vector<Tensor> tensors) {
  ImageLayout layout{.tensors = std::move(tensors)};
  EXPECT_TRUE(AssignOffsets(layout).ok());
  return layout;
}

// Every byte of each tensor is its index + 1; the padding is 0xEE, to show where it must not appear.
std::vector<std::byte> ImageOf(const ImageLayout& layout) {
  std::vector<std::byte> image(layout.image_bytes, std::byte{0xEE});
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const Tensor& tensor = layout.tensors[i];
    std::fill_n(image.begin() + tensor.offset, tensor.nbytes, static_cast<std::byte>(i + 1));
  }
  return image;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class WriteSafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {}

  std::string Path(std::string_view name) const { return folder_.path() + "/" + std::string(name); }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename());
    return names;
  }

  const testing::TempFolder folder_;
};

TEST(EncodeSafetensorsHeader, SafetensorsHeader_EncodesLengthAndPaddedJson) {
  const auto header = EncodeSafetensorsHeader(
      {MakeTensor("w", DType::kBF16, {2, 3}), MakeTensor("s", DType::kF32, {})}, {{"format", "pt"}});
  ASSERT_TRUE(header.ok()) << header.status();
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[12,16]}})";
  const size_t padded = (json.size() + 7) / 8 * 8;
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(padded);
  ASSERT_LT(padded, 256u);
  EXPECT_EQ(*header, expected + json + std::string(padded - json.size(), ' '));
}

TEST(EncodeSafetensorsHeader, SafetensorsHeaderWithoutTensors_EncodesEmptyObject) {
  EXPECT_EQ(*EncodeSafetensorsHeader({}, {}), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(EncodeSafetensorsHeader, SafetensorsHeader_KeepsAnyNameInRoundTrip) {
  std::vector<Tensor> tensors;
  for (const std::string name :
       {"plain", "quote\"back\\slash", "line\n\t\x01\x7F", "\xC3\xA9\xF0\x9F\x98\x80"}) {
    tensors.push_back(MakeTensor(name, DType::kU8, {1}));
  }
  const std::map<std::string, std::string> metadata = {{"", ""}, {"\"", "\\"}, {"\xC3\xA9", "\n"}};
  const auto header = EncodeSafetensorsHeader(tensors, metadata);
  ASSERT_TRUE(header.ok()) << header.status();
  const auto parsed = ParseSafetensorsHeader(std::string_view(*header).substr(8), tensors.size());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(parsed->tensors[i].name, tensors[i].name);
  EXPECT_EQ(parsed->metadata, metadata);
}

TEST(EncodeSafetensorsHeader, EncodeHeader_RejectsInvalidTensorsAndMetadata) {
  const auto code = [](std::vector<Tensor> tensors, std::map<std::string, std::string> metadata = {}) {
    return EncodeSafetensorsHeader(tensors, metadata).status().code();
  };
  const Tensor good = MakeTensor("w", DType::kU8, {1});
  ASSERT_EQ(code({good}), absl::StatusCode::kOk);
  EXPECT_EQ(code({MakeTensor("", DType::kU8, {1})}), absl::StatusCode::kOk);
  const uint64_t large = uint64_t{1} << 63;
  EXPECT_EQ(code({{.name = "w", .shape = {large, large, 0}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.name = "w", .shape = {0, large, large}}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({MakeTensor("__metadata__", DType::kU8, {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({MakeTensor("\xFF", DType::kU8, {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good, good}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good}, {{"k", "\xFF"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good}, {{"\xFF", "v"}}), absl::StatusCode::kInvalidArgument);
  Tensor wrong = good;
  wrong.nbytes = 2;
  EXPECT_EQ(code({wrong}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good}, {{"k", std::string(kMaxSafetensorsHeaderBytes, 'x')}}),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsOrder, SafetensorsOrder_KeepsImageOrderWhereItIsAligned) {
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {4}), MakeTensor("b", DType::kF32, {1}),
                                       MakeTensor("c", DType::kU8, {3})});
  EXPECT_EQ(SafetensorsOrder(layout), layout.tensors);
}

TEST(SafetensorsOrder, SafetensorsOrder_PutsLargerElementsFirstOtherwise) {
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {3}), MakeTensor("b", DType::kF16, {1}),
                                       MakeTensor("c", DType::kF4, {2}), MakeTensor("d", DType::kF64, {1}),
                                       MakeTensor("e", DType::kBF16, {1})});
  std::vector<std::string> names;
  for (const Tensor& tensor : SafetensorsOrder(layout)) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("d", "b", "e", "a", "c"));
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_OmitsPadding) {
  const ImageLayout layout =
      LayoutOf({MakeTensor("a", DType::kF32, {2}), MakeTensor("empty", DType::kF32, {0}),
                MakeTensor("b", DType::kU8, {256}), MakeTensor("c", DType::kU8, {3})});
  const std::vector<std::byte> image = ImageOf(layout);
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), layout, {{"k", "v"}}, image).ok());
  const std::string header = *EncodeSafetensorsHeader(layout.tensors, {{"k", "v"}});
  EXPECT_EQ(ReadFile(Path("m.safetensors")),
            header + std::string(8, '\1') + std::string(256, '\3') + std::string(3, '\4'));
  EXPECT_THAT(Files(), ElementsAre("m.safetensors"));
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_WritesTensorsFromSeparateMemory) {
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {3}), MakeTensor("b", DType::kU8, {4})});
  const std::string first = "xyz";
  const std::string second = "1234";
  const auto bytes_of = [&](const Tensor& tensor) {
    return ConstHostSpan(std::as_bytes(std::span(tensor.name == "a" ? first : second)));
  };
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), layout, {}, bytes_of).ok());
  EXPECT_TRUE(ReadFile(Path("m.safetensors")).ends_with("xyz1234"));
  const auto too_few = [&](const Tensor&) { return ConstHostSpan(std::as_bytes(std::span(first))); };
  EXPECT_EQ(WriteSafetensors(Path("n.safetensors"), layout, {}, too_few).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(Path("n.safetensors")));
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_WritesMoreTensorsThanOneSystemCall) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 3000; ++i) {
    tensors.push_back(MakeTensor("t" + std::to_string(i), DType::kU8, {static_cast<uint64_t>(i % 7)}));
  }
  const ImageLayout layout = LayoutOf(std::move(tensors));
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), layout, {}, ImageOf(layout)).ok());
  std::string expected = *EncodeSafetensorsHeader(layout.tensors, {});
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    expected += std::string(layout.tensors[i].nbytes, static_cast<char>(i + 1));
  }
  EXPECT_EQ(ReadFile(Path("m.safetensors")), expected);
}

TEST_F(WriteSafetensorsTest, WriteSafetensorsWithoutTensors_MakesValidFile) {
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), ImageLayout{}, {}, {}).ok());
  const auto model = OpenSafetensors(Path("m.safetensors"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->layout.tensors.empty());
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_ReplacesExistingFile) {
  std::ofstream(Path("m.safetensors")) << "old";
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {2})});
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), layout, {}, ImageOf(layout)).ok());
  EXPECT_TRUE(OpenSafetensors(Path("m.safetensors")).ok());
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_KeepsForeignTemporaryFile) {
  const std::string foreign = Path("m.safetensors.tmp-") + std::to_string(getpid()) + "-0";
  std::ofstream(foreign) << "foreign";
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {2})});
  ASSERT_TRUE(WriteSafetensors(Path("m.safetensors"), layout, {}, ImageOf(layout)).ok());
  EXPECT_EQ(ReadFile(foreign), "foreign");
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_RejectsShortImageAndInvalidLayout) {
  ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {2})});
  const std::vector<std::byte> image = ImageOf(layout);
  EXPECT_EQ(WriteSafetensors(Path("m"), layout, {}, std::span(image).first(255)).code(),
            absl::StatusCode::kInvalidArgument);
  layout.tensors[0].offset = 256;
  EXPECT_EQ(WriteSafetensors(Path("m"), layout, {}, image).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_RefusesToReplaceNonRegularFile) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  const absl::Status status = WriteSafetensors(Path("fifo"), ImageLayout{}, {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_fifo(Path("fifo")));
  EXPECT_EQ(WriteSafetensors(folder_.path(), ImageLayout{}, {}, {}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Files(), ElementsAre("fifo"));
}

TEST_F(WriteSafetensorsTest, WriteSafetensors_FailsWithNotFoundForMissingFolder) {
  const absl::Status status = WriteSafetensors(Path("no/m.safetensors"), ImageLayout{}, {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(Path("no/m.safetensors")));
}

// Runs `work` in a child, so that limits and mounts end with it. `work` returns an exit code.
template <typename Work>
int InChild(Work work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST_F(WriteSafetensorsTest, FailedWrite_KeepsPreviousFileOnly) {
  std::ofstream(Path("m.safetensors")) << "old";
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {1 << 20})});
  const std::vector<std::byte> image = ImageOf(layout);
  const int result = InChild([&] {
    const rlimit limit{64 << 10, 64 << 10};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    return WriteSafetensors(Path("m.safetensors"), layout, {}, image).ok() ? 1 : 0;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(ReadFile(Path("m.safetensors")), "old");
  EXPECT_THAT(Files(), ElementsAre("m.safetensors"));
}

// In a mount namespace of this process's own.
bool MountSmallFileSystem(const std::string& folder) {
  const uid_t uid = getuid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
}

TEST_F(WriteSafetensorsTest, FullDisk_IsResourceExhaustedWithoutFile) {
  constexpr int kNoMount = 77;
  const ImageLayout layout = LayoutOf({MakeTensor("a", DType::kU8, {1 << 20})});
  const std::vector<std::byte> image = ImageOf(layout);
  const int result = InChild([&] {
    if (!MountSmallFileSystem(folder_.path())) return kNoMount;
    const absl::Status status = WriteSafetensors(Path("m.safetensors"), layout, {}, image);
    return status.code() == absl::StatusCode::kResourceExhausted && Files().empty() ? 0 : 1;
  });
  if (result == kNoMount) GTEST_SKIP() << "no permission to mount a small file system";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tensorcast::writer_test
