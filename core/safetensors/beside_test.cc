#include "core/safetensors/beside.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "core/artifact/manifest.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/memory_objects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::beside_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FilesBesideTest : public ::testing::Test {
 protected:
  absl::StatusOr<FilesBeside> Open() {
    const auto found = store_.Find({}, "mem://m");
    EXPECT_TRUE(found.ok()) << found.status();
    SafetensorsModel model;
    model.folder = found->folder;
    model.shards = {"shard-1"};
    return OpenFilesBeside({}, model);
  }
  static std::vector<std::string> NamesOf(const FilesBeside& files) {
    std::vector<std::string> names;
    for (const Tensor& tensor : files.layout.tensors) names.push_back(tensor.name);
    return names;
  }

  testing::MemoryObjects store_;
};

TEST_F(FilesBesideTest, Folder_GivesItsFilesButNoWeights) {
  for (const char* const name :
       {"config.json", "tokenizer.model", "1_Pooling/config.json", "LICENSE", "empty", "model.safetensors",
        "model.safetensors.index.json", "pytorch_model.bin", "original/consolidated.00.pth", "q4.gguf",
        "shard-1", ".git/HEAD"}) {
    store_.Put(absl::StrCat("mem://m/", name), std::string(name) == "empty" ? "" : name);
  }
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(NamesOf(*files),
              ElementsAre("1_Pooling/config.json", "LICENSE", "config.json", "empty", "tokenizer.model"));
  EXPECT_EQ(files->objects.size(), 5u);
  EXPECT_EQ(files->extents.size(), 4u);  // none of the empty file
  EXPECT_TRUE(CheckFileLayout(files->layout).ok());
}

TEST_F(FilesBesideTest, TooManyFilesOrBytes_AreRefusedWithRemedy) {
  for (size_t i = 0; i <= kMaxFilesBeside; ++i) store_.Put(absl::StrCat("mem://m/", i, ".txt"), "");
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("more than 512 files that are not weights; move"));
  EXPECT_THAT(status.message(), HasSubstr("--no-files"));
}

TEST_F(FilesBesideTest, UnsafeOrMissingPaths_AreRefused) {
  store_.Put("mem://m/a", "a");
  const auto object = store_.Find({}, "mem://m/a")->object;
  EXPECT_FALSE(FilesOf({object}, {"../a"}).ok());
  EXPECT_FALSE(FilesOf({object}, {}).ok());
  EXPECT_FALSE(FilesOf({object, object}, {"b", "a"}).ok());
}

std::map<std::string, std::string> FilesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    files[std::filesystem::relative(entry.path(), folder).string()] = text.str();
  }
  return files;
}

TEST_F(FilesBesideTest, WrittenFiles_HaveTheirPathsAndBytes) {
  const tensorcast::testing::TempFolder folder;
  const std::map<std::string, std::string> texts = {
      {"1_Pooling/config.json", "{}"}, {"config.json", "{\"a\": 1}"}, {"empty", ""}};
  for (const auto& [name, text] : texts) store_.Put(absl::StrCat("mem://m/", name), text);
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string out = absl::StrCat(folder.path(), "/new/model");
  const auto bytes_of = [&](const Tensor& tensor) { return std::as_bytes(std::span(texts.at(tensor.name))); };
  ASSERT_TRUE(WriteFiles(out, files->layout, bytes_of).ok());
  EXPECT_EQ(FilesIn(out), texts);
  // Once more, over what is there.
  ASSERT_TRUE(WriteFiles(out, files->layout, bytes_of).ok());
  EXPECT_EQ(FilesIn(out), texts);
}

TEST_F(FilesBesideTest, AdapterFolder_OpensAdapterModel) {
  const tensorcast::testing::TempFolder folder;
  ImageLayout layout{.tensors = {{.name = "lora_A", .dtype = DType::kU8, .shape = {3}, .nbytes = 3}}};
  ASSERT_TRUE(AssignOffsets(layout).ok());
  const std::string image(layout.image_bytes, '\0');
  ASSERT_TRUE(WriteSafetensors(folder.path() + "/adapter_model.safetensors", layout, {},
                               std::as_bytes(std::span(image)))
                  .ok());
  std::ofstream(folder.path() + "/adapter_config.json") << "{}";
  const auto model = OpenSafetensors(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_NE(model->folder, nullptr);
  const auto files = OpenFilesBeside({}, *model);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(NamesOf(*files), ElementsAre("adapter_config.json"));
  // A file that is named by itself has none.
  const auto file = OpenSafetensors(folder.path() + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->folder, nullptr);
}

}  // namespace
}  // namespace tensorcast::beside_test
