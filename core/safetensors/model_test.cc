#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/testing/temp_folder.h"
#include "core/artifact/test_util.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/memory_objects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::model_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
namespace fs = std::filesystem;

Tensor MakeTensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = *TensorBytes(dtype, shape);
  return Tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .nbytes = bytes};
}

class OpenSafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {}

  std::string Path(std::string_view name) const { return folder_.path() + "/" + std::string(name); }

  void WriteRaw(std::string_view name, std::string_view bytes) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }

  // A file of these tensors, in this order; returns the offset of the first tensor's bytes.
  uint64_t WriteFile(std::string_view name, const std::vector<Tensor>& tensors,
                     const std::map<std::string, std::string>& metadata = {}) {
    const std::string header = *EncodeSafetensorsHeader(tensors, metadata);
    std::string data;
    for (const Tensor& tensor : tensors) {
      data.append(tensor.nbytes, static_cast<char>('a' + data.size() % 26));
    }
    WriteRaw(name, header + data);
    return header.size();
  }

  void WriteIndex(const std::vector<std::pair<std::string, std::string>>& weight_map) {
    const std::string entries = absl::StrJoin(weight_map, ",", [](std::string* out, const auto& entry) {
      absl::StrAppend(out, "\"", entry.first, "\":\"", entry.second, "\"");
    });
    WriteRaw("model.safetensors.index.json",
             absl::StrCat("{\"metadata\":{},\"weight_map\":{", entries, "}}"));
  }

  void ExpectError(const std::string& path, absl::StatusCode code, const std::vector<std::string>& parts) {
    const auto model = OpenSafetensors(path);
    EXPECT_EQ(model.status().code(), code) << model.status();
    for (const std::string& part : parts) EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
  }

  const testing::TempFolder folder_;
};

std::vector<std::string> Names(const SafetensorsModel& model) {
  std::vector<std::string> names;
  for (const Tensor& tensor : model.layout.tensors) names.push_back(tensor.name);
  return names;
}

TEST_F(OpenSafetensorsTest, OpenSafetensors_LaysOutTensorsInDataOrder) {
  const uint64_t data = WriteFile("m.safetensors",
                                  {MakeTensor("b", DType::kF32, {3}), MakeTensor("empty", DType::kF32, {0}),
                                   MakeTensor("a", DType::kU8, {300}), MakeTensor("s", DType::kU8, {})},
                                  {{"format", "pt"}});
  const auto model = OpenSafetensors(Path("m.safetensors"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("b", "empty", "a", "s"));
  EXPECT_EQ(model->layout.chunk_bytes, ChunkBytesOf(model->layout.image_bytes));
  EXPECT_TRUE(ValidateLayout(model->layout).ok());
  EXPECT_THAT(model->metadata, ElementsAre(Pair("format", "pt")));
  ASSERT_EQ(model->extents.size(), 3u);
  EXPECT_EQ(model->extents[0].object_offset, data);
  EXPECT_EQ(model->extents[0].image_offset, 0u);
  EXPECT_EQ(model->extents[0].bytes, 12u);
  EXPECT_EQ(model->extents[1].object_offset, data + 12);
  EXPECT_EQ(model->extents[1].image_offset, 256u);
  EXPECT_EQ(model->extents[1].bytes, 300u);
  EXPECT_EQ(model->extents[2].object_offset, data + 312);
  EXPECT_EQ(model->extents[2].image_offset, 768u);
}

TEST_F(OpenSafetensorsTest, ObjectIdentity_HoldsRealPathSizeAndMtime) {
  WriteFile("m.safetensors", {MakeTensor("a", DType::kU8, {3})});
  const timespec times[2] = {{1, 0}, {1'600'000'000, 123'456'789}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("m.safetensors").c_str(), times, 0), 0);
  fs::create_symlink("m.safetensors", Path("link"));
  const auto model = OpenSafetensors(Path("link"));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->objects.size(), 1u);
  EXPECT_EQ(model->objects[0]->identity().uri, Path("m.safetensors"));
  EXPECT_EQ(model->objects[0]->identity().bytes, fs::file_size(Path("m.safetensors")));
  EXPECT_EQ(FileVersion::Parse(model->objects[0]->identity().version)->mtime_ns, 1'600'000'000'123'456'789);
}

TEST_F(OpenSafetensorsTest, TensorsAdjacentInFileAndImage_ShareOneExtent) {
  WriteFile("m.safetensors", {MakeTensor("a", DType::kU8, {256}), MakeTensor("b", DType::kF32, {128}),
                              MakeTensor("c", DType::kU8, {1}), MakeTensor("d", DType::kU8, {1})});
  const auto model = OpenSafetensors(Path("m.safetensors"));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->extents.size(), 2u);
  EXPECT_EQ(model->extents[0].bytes, 256u + 512 + 1);
  EXPECT_EQ(model->extents[1].image_offset, 1024u);
}

TEST_F(OpenSafetensorsTest, FolderWithSingleFile_OpensModelSafetensors) {
  WriteFile("model.safetensors", {MakeTensor("a", DType::kU8, {3})});
  WriteFile("other.safetensors", {MakeTensor("b", DType::kU8, {3})});
  const auto model = OpenSafetensors(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("a"));
}

TEST_F(OpenSafetensorsTest, Shards_AreOrderedByNameThenDataOffset) {
  WriteFile("model-2.safetensors", {MakeTensor("a", DType::kU8, {3})});
  WriteFile("model-1.safetensors", {MakeTensor("z", DType::kU8, {3}), MakeTensor("y", DType::kU8, {3})});
  WriteFile("model-10.safetensors", {MakeTensor("m", DType::kU8, {3})});
  WriteIndex({{"a", "model-2.safetensors"},
              {"y", "model-1.safetensors"},
              {"z", "model-1.safetensors"},
              {"m", "model-10.safetensors"}});
  const auto model = OpenSafetensors(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("z", "y", "m", "a"));
  ASSERT_EQ(model->objects.size(), 3u);
  EXPECT_EQ(model->objects[2]->identity().uri, Path("model-2.safetensors"));
  ASSERT_EQ(model->extents.size(), 4u);
  EXPECT_EQ(model->extents[1].object, 0u);
  EXPECT_EQ(model->extents[2].object, 1u);
  EXPECT_EQ(model->extents[3].object, 2u);
}

TEST_F(OpenSafetensorsTest, Index_TakesPrecedenceOverSingleFile) {
  WriteFile("model.safetensors", {MakeTensor("single", DType::kU8, {3})});
  WriteFile("sub/one.safetensors", {MakeTensor("sharded", DType::kU8, {3})});
  WriteIndex({{"sharded", "sub/one.safetensors"}});
  const auto model = OpenSafetensors(folder_.path() + "/");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("sharded"));
}

TEST_F(OpenSafetensorsTest, ShardMetadata_IsMergedAndConflictsGetShardPrefix) {
  WriteFile("1", {MakeTensor("a", DType::kU8, {1})}, {{"format", "pt"}, {"part", "one"}});
  WriteFile("2", {MakeTensor("b", DType::kU8, {1})}, {{"format", "pt"}, {"part", "two"}, {"extra", "x"}});
  WriteFile("3", {MakeTensor("c", DType::kU8, {1})}, {{"2/part", "a literal key"}, {"part", "one"}});
  WriteIndex({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  const auto model = OpenSafetensors(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->metadata, ElementsAre(Pair("2/part", "two"), Pair("3/2/part", "a literal key"),
                                           Pair("extra", "x"), Pair("format", "pt"), Pair("part", "one")));
}

// The shards disagree about a key, so that their names are in the metadata, too.
class ReadSafetensorsAgainTest : public OpenSafetensorsTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(OpenSafetensorsTest::SetUp());
    WriteFile("1", {MakeTensor("a", DType::kU8, {1})}, {{"part", "one"}});
    WriteFile("2", {MakeTensor("b", DType::kU8, {1})}, {{"part", "two"}});
    WriteIndex({{"a", "1"}, {"b", "2"}});
    auto model = OpenSafetensors(folder_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    manifest_ = *Manifest::Create(model_.layout, testing::NoDigests(model_.layout), model_.metadata);
  }
  absl::Status ReadAgain() { return ReadSafetensorsAgain({}, *manifest_, model_); }
  // Writes other text in place of this one, of the same size, and sets the mtime back: as a store to a mapped
  // page that was dirty already.
  void Replace(std::string_view name, const std::string& text, const std::string& other) {
    std::fstream file(Path(name), std::ios::binary | std::ios::in | std::ios::out);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_NE(bytes.find(text), std::string::npos);
    const auto time = fs::last_write_time(Path(name));
    file.seekp(static_cast<std::streamoff>(bytes.find(text))) << other;
    file.close();
    fs::last_write_time(Path(name), time);
  }

  SafetensorsModel model_;
  std::shared_ptr<const Manifest> manifest_;
};

TEST_F(ReadSafetensorsAgainTest, ReadAgain_AcceptsUnchangedHeaders) {
  const absl::Status status = ReadAgain();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ReadSafetensorsAgainTest, ReadAgain_AbortsWhenMetadataChanged) {
  Replace("2", "two", "TWO");
  EXPECT_EQ(ReadAgain().code(), absl::StatusCode::kAborted);
}

TEST_F(ReadSafetensorsAgainTest, ReadAgain_AbortsWhenTensorsChanged) {
  Replace("1", "\"a\"", "\"z\"");
  EXPECT_EQ(ReadAgain().code(), absl::StatusCode::kAborted);
}

TEST_F(OpenSafetensorsTest, MissingModelFile_IsNotFound) {
  ExpectError(Path("no.safetensors"), absl::StatusCode::kNotFound, {Path("no.safetensors")});
  ExpectError(folder_.path(), absl::StatusCode::kNotFound,
              {folder_.path(), "model.safetensors.index.json", "model.safetensors"});
  WriteFile("1", {MakeTensor("a", DType::kU8, {1})});
  WriteIndex({{"a", "1"}, {"b", "2"}});
  ExpectError(folder_.path(), absl::StatusCode::kNotFound, {Path("2")});
  fs::create_symlink("gone", Path("2"));
  ExpectError(folder_.path(), absl::StatusCode::kNotFound, {Path("2")});
}

// The files of this process's folders, which may be entered but not listed (mode 0711).
class UnlistedStore : public ObjectStore {
 public:
  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override {
    absl::StatusOr<FoundObject> found = files_.Find(context, uri);
    if (found.ok() && found->folder != nullptr) found->folder = std::make_shared<Folder>(found->folder);
    return found;
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override {
    return files_.OpenAgain(context, object);
  }

 private:
  class Folder : public ObjectFolder {
   public:
    explicit Folder(std::shared_ptr<ObjectFolder> folder) : folder_(std::move(folder)) {}
    absl::StatusOr<std::vector<std::string>> List(const RequestContext&) const override {
      return absl::PermissionDeniedError("not listed");
    }
    absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& context, size_t) const override {
      return List(context);
    }
    absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                       const std::string& name) const override {
      return folder_->Open(context, name);
    }

   private:
    const std::shared_ptr<ObjectFolder> folder_;
  };

  const ImportRoots files_ = ImportRoots::Everything();
};

TEST_F(OpenSafetensorsTest, FolderThatMayNotBeListed_IsOpenedByItsNames) {
  const UnlistedStore store;
  const absl::Status empty = OpenSafetensors(RequestContext(), store, folder_.path()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(empty)) << empty;
  EXPECT_THAT(std::string(empty.message()), HasSubstr("the folder cannot be listed"));
  WriteFile("model.safetensors", {MakeTensor("single", DType::kU8, {1})});
  const auto single = OpenSafetensors(RequestContext(), store, folder_.path());
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_THAT(Names(*single), ElementsAre("single"));
  WriteFile("shard.safetensors", {MakeTensor("a", DType::kU8, {1})});
  WriteIndex({{"a", "shard.safetensors"}});
  const auto sharded = OpenSafetensors(RequestContext(), store, folder_.path());
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_THAT(Names(*sharded), ElementsAre("a"));
}

TEST_F(OpenSafetensorsTest, IndexThatContradictsShards_IsRefused) {
  WriteFile("1", {MakeTensor("a", DType::kU8, {1}), MakeTensor("b", DType::kU8, {1})});
  WriteFile("2", {MakeTensor("c", DType::kU8, {1})});
  WriteIndex({{"a", "1"}, {"b", "1"}, {"c", "2"}, {"d", "2"}});
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, {Path("2"), "lacks tensor \"d\""});
  WriteIndex({{"a", "1"}, {"c", "2"}});
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument,
              {Path("1"), "holds tensor \"b\", which the index does not name"});
  WriteIndex({{"a", "1"}, {"b", "2"}, {"c", "2"}});
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument,
              {Path("1"), "holds tensor \"b\", which the index puts in \"2\""});
}

TEST_F(OpenSafetensorsTest, PathOutsideModelFolder_IsRefused) {
  WriteFile("outside", {MakeTensor("a", DType::kU8, {1})});
  fs::create_directory(Path("model"));
  const auto write_index = [&](std::string_view shard) {
    WriteRaw("model/model.safetensors.index.json", absl::StrCat("{\"weight_map\":{\"a\":\"", shard, "\"}}"));
  };
  write_index("../outside");
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument,
              {"model.safetensors.index.json", "../outside"});
  write_index(Path("outside"));
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument, {"plain path"});
  write_index("shard");
  fs::create_symlink("../outside", Path("model/shard"));
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument, {Path("model/shard"), "outside of "});
  fs::remove(Path("model/shard"));
  fs::create_directory_symlink("..", Path("model/up"));
  write_index("up/outside");
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument, {"outside of "});
  fs::remove(Path("model/model.safetensors.index.json"));
  fs::create_symlink("../outside", Path("model/model.safetensors"));
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument, {"outside of "});
}

TEST_F(OpenSafetensorsTest, ShardInFolderWithModelNameAsPrefix_IsRefused) {
  WriteFile("model-evil/shard", {MakeTensor("a", DType::kU8, {1})});
  WriteRaw("model/model.safetensors.index.json", R"({"weight_map":{"a":"shard"}})");
  fs::create_symlink("../model-evil/shard", Path("model/shard"));
  ExpectError(Path("model"), absl::StatusCode::kInvalidArgument, {"outside of "});
}

TEST_F(OpenSafetensorsTest, LinkInsideModelFolder_IsFollowed) {
  WriteFile("real", {MakeTensor("a", DType::kU8, {1})});
  fs::create_symlink("real", Path("shard"));
  WriteIndex({{"a", "shard"}});
  const auto model = OpenSafetensors(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->objects[0]->identity().uri, Path("real"));
}

TEST_F(OpenSafetensorsTest, HubSnapshot_MayLinkOnlyIntoItsBlobs) {
  WriteFile("m/blobs/0123", {MakeTensor("a", DType::kU8, {1})});
  WriteRaw("m/blobs/4567", R"({"weight_map":{"a":"shard"}})");
  WriteFile("m/secret", {MakeTensor("a", DType::kU8, {1})});
  fs::create_directories(Path("m/snapshots/main"));
  fs::create_symlink("../../blobs/4567", Path("m/snapshots/main/model.safetensors.index.json"));
  fs::create_symlink("../../blobs/0123", Path("m/snapshots/main/shard"));
  const auto model = OpenSafetensors(Path("m/snapshots/main"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->objects[0]->identity().uri, Path("m/blobs/0123"));
  fs::remove(Path("m/snapshots/main/shard"));
  fs::create_symlink("../../secret", Path("m/snapshots/main/shard"));
  ExpectError(Path("m/snapshots/main"), absl::StatusCode::kInvalidArgument, {"outside of "});
}

TEST_F(OpenSafetensorsTest, ModelThatIsNotFiles_IsOpened) {
  testing::MemoryObjects objects;
  objects.Put("mem://m/1", *EncodeSafetensorsHeader({MakeTensor("a", DType::kU8, {3})}, {}) + "abc");
  objects.Put("mem://m/model.safetensors.index.json", R"({"weight_map":{"a":"1"}})");
  const auto model = OpenSafetensors({}, objects, "mem://m");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("a"));
  EXPECT_EQ(model->objects[0]->identity().uri, "mem://m/1");
  objects.Remove("mem://m/1");
  EXPECT_EQ(OpenSafetensors({}, objects, "mem://m").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(OpenSafetensorsTest, ErrorThatNamesTensorWithSemicolon_HasARemedy) {
  testing::MemoryObjects objects;
  objects.Put("mem://m/1", *EncodeSafetensorsHeader({MakeTensor("a;b", DType::kU8, {3})}, {}) + "abc");
  objects.Put("mem://m/model.safetensors.index.json", R"({"weight_map":{"a":"1"}})");
  EXPECT_THAT(OpenSafetensors({}, objects, "mem://m").status().message(),
              AllOf(HasSubstr("\"a;b\""), HasSubstr("; write or download the file again")));
}

TEST_F(OpenSafetensorsTest, FileThatIsNotSafetensors_IsRefusedByName) {
  const std::string path = Path("m.safetensors");
  WriteRaw("m.safetensors", "");
  ExpectError(path, absl::StatusCode::kInvalidArgument,
              {absl::StrCat("open ", path, ": the file is not a safetensors file"),
               "only 0 bytes; write or download"});
  WriteRaw("m.safetensors", "1234567");
  ExpectError(path, absl::StatusCode::kInvalidArgument, {path, "only 7 bytes"});
  WriteRaw("m.safetensors", "another format altogether");
  ExpectError(path, absl::StatusCode::kInvalidArgument, {path, "the format allows at most 100000000"});
  WriteRaw("m.safetensors", std::string("\x20\0\0\0\0\0\0\0{}", 10));
  ExpectError(path, absl::StatusCode::kInvalidArgument, {path, "truncated"});
  WriteRaw("m.safetensors", std::string(8, '\0'));
  ExpectError(path, absl::StatusCode::kInvalidArgument, {path, "does not begin with '{'"});
  WriteRaw("m.safetensors", std::string(8, '\xFF') + "{}");
  ExpectError(path, absl::StatusCode::kInvalidArgument, {path, "18446744073709551615"});
}

TEST_F(OpenSafetensorsTest, OtherFormat_IsRefusedWithHowToConvert) {
  WriteRaw("zip.bin", "PK\x03\x04 a zip archive, as PyTorch's checkpoints are");
  ExpectError(Path("zip.bin"), absl::StatusCode::kInvalidArgument, {Path("zip.bin"), "PyTorch", "save_file"});
  WriteRaw("old.pt", "\x80\x02\x8a\x0al a pickle");
  ExpectError(Path("old.pt"), absl::StatusCode::kInvalidArgument, {Path("old.pt"), "PyTorch", "save_file"});
  WriteRaw("m.gguf", "GGUF\x03 and more");
  ExpectError(Path("m.gguf"), absl::StatusCode::kInvalidArgument,
              {Path("m.gguf"), "GGUF", "save_pretrained"});
  EXPECT_THAT(std::string(OpenSafetensors(Path("m.gguf")).status().message()),
              ::testing::Not(HasSubstr("download the file again")));
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, {"m.gguf", "GGUF", "save_pretrained"});
  testing::MemoryObjects objects;
  objects.Put("mem://model/pytorch_model.bin", "PK\x03\x04 a zip archive");
  for (const char* const uri : {"mem://model", "mem://model/pytorch_model.bin"}) {
    const absl::Status refused = OpenSafetensors({}, objects, uri).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("save_file"));
  }
}

TEST_F(OpenSafetensorsTest, TruncatedSafetensorsFile_IsRefused) {
  WriteFile("m.safetensors", {MakeTensor("a", DType::kU8, {100})});
  fs::resize_file(Path("m.safetensors"), fs::file_size(Path("m.safetensors")) - 1);
  ExpectError(Path("m.safetensors"), absl::StatusCode::kInvalidArgument,
              {Path("m.safetensors"), "truncated"});
}

TEST_F(OpenSafetensorsTest, BrokenShard_IsNamedInTheError) {
  WriteRaw("1", "broken");
  WriteIndex({{"a", "1"}});
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, {Path("1"), "only 6 bytes"});
}

TEST_F(OpenSafetensorsTest, EmptyTensorName_IsAccepted) {
  WriteFile("m.safetensors", {MakeTensor("", DType::kU8, {3}), MakeTensor("a", DType::kU8, {1})});
  const auto model = OpenSafetensors(Path("m.safetensors"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(*model), ElementsAre("", "a"));
  // In a sharded model too.
  WriteFile("s", {MakeTensor("", DType::kU8, {1})});
  WriteIndex({{"", "s"}});
  const auto sharded = OpenSafetensors(folder_.path());
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_THAT(Names(*sharded), ElementsAre(""));
}

TEST_F(OpenSafetensorsTest, EmptyMetadata_DiffersFromMissingMetadata) {
  const std::map<std::string, std::string> empty = {{std::string(kEmptyMetadataKey), ""}};
  WriteFile("none", {MakeTensor("a", DType::kU8, {1})});
  WriteFile("empty", {MakeTensor("b", DType::kU8, {1})}, empty);
  WriteFile("some", {MakeTensor("c", DType::kU8, {1})}, {{"format", "pt"}});
  EXPECT_TRUE(OpenSafetensors(Path("none"))->metadata.empty());
  EXPECT_EQ(OpenSafetensors(Path("empty"))->metadata, empty);
  WriteIndex({{"a", "none"}, {"b", "empty"}});
  EXPECT_EQ(OpenSafetensors(folder_.path())->metadata, empty);
  WriteIndex({{"b", "empty"}, {"c", "some"}});
  EXPECT_THAT(OpenSafetensors(folder_.path())->metadata, ElementsAre(Pair("format", "pt")));
}

TEST_F(OpenSafetensorsTest, Fifo_IsRefusedWithoutBlocking) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  ExpectError(Path("fifo"), absl::StatusCode::kInvalidArgument, {Path("fifo"), "not a regular file"});
  WriteIndex({{"a", "fifo"}});
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, {"not a regular file"});
}

}  // namespace
}  // namespace tensorcast::model_test
