#include "tools/workshop/model/llama_model.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/safetensors/safetensors.h"

namespace tensorcast::llama_model_test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LlamaModel, LlamaModel_HasRoughlyTheRequestedSize) {
  for (const uint64_t mib : {8, 100, 1024, 4096}) {
    uint64_t bytes = 0;
    for (const Tensor& tensor : LlamaTensors(mib << 20)) bytes += tensor.nbytes;
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(mib << 20),
                0.1 * static_cast<double>(mib << 20))
        << mib;
  }
}

TEST(LlamaModel, ShardedModel_HasSameTensorsAsSingleFile) {
  const std::string base = ::testing::TempDir() + "/llama_model_test";
  std::filesystem::remove_all(base);
  std::filesystem::create_directories(base);
  ASSERT_TRUE(WriteLlamaModel(base + "/one.safetensors", {.bytes = 8 << 20}).ok());
  ASSERT_TRUE(WriteLlamaModel(base + "/three", {.bytes = 8 << 20, .shards = 3}).ok());

  const auto one = OpenSafetensors(base + "/one.safetensors");
  const auto three = OpenSafetensors(base + "/three");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->objects.size(), 3u);
  EXPECT_EQ(one->layout, three->layout);
  std::filesystem::remove_all(base);
}

TEST(LlamaModel, Seed_DeterminesBytesOfModel) {
  const std::string base = ::testing::TempDir() + "/llama_seed_test";
  ASSERT_TRUE(WriteLlamaModel(base + "a", {.bytes = 8 << 20, .seed = 7}).ok());
  ASSERT_TRUE(WriteLlamaModel(base + "b", {.bytes = 8 << 20, .seed = 7}).ok());
  ASSERT_TRUE(WriteLlamaModel(base + "c", {.bytes = 8 << 20, .seed = 8}).ok());
  EXPECT_EQ(ReadFile(base + "a"), ReadFile(base + "b"));
  EXPECT_NE(ReadFile(base + "a"), ReadFile(base + "c"));
  for (const char* name : {"a", "b", "c"}) std::filesystem::remove(base + name);
}

TEST(LlamaModel, ModelTooLargeForDisk_IsRefusedBeforeWriting) {
  const std::string folder = ::testing::TempDir() + "/llama_large_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, uint64_t bytes, int shards) {
    return WriteLlamaModel(folder + name, {.bytes = bytes, .shards = shards}).code();
  };
  for (const int shards : {1, 3}) {
    EXPECT_EQ(write("/m", uint64_t{100'000} << 40, shards), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(write("/m", kMaxLlamaModelBytes, shards), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(write("/to/be/made/m", kMaxLlamaModelBytes, shards), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(LlamaModel, OutputPathOfFifoOrEmpty_IsRefused) {
  const std::string fifo = ::testing::TempDir() + "/llama_fifo_test";
  std::filesystem::remove(fifo);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(WriteLlamaModel(fifo, {.bytes = 8 << 20}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteLlamaModel("", {.bytes = 8 << 20}).code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(fifo);
}

}  // namespace
}  // namespace tensorcast::llama_model_test
