// Imports of files that a client opened and offered on the handle socket.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/eventually.h"
#include "core/handles/handle_client.h"
#include "core/testing/hanging_folder.h"
#include "core/testing/memory_objects.h"
#include "daemon/service/model_files.h"
#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon::model_files_test {
namespace {

using tensorcast::testing::HangingFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OfferedFilesTest : public ServiceTest {
 protected:
  // A model that lies outside of the import roots.
  std::string WriteOutside(const std::string& name) {
    const std::string path = absl::StrCat(folder, "/", name);
    EXPECT_TRUE(WriteSafetensors(path, artifact.layout, {}, artifact.image).ok());
    return path;
  }

  absl::StatusOr<v1::PutArtifactResult> ImportFd(const RequestContext& context, int fd, bool verify = false) {
    const auto offer = OfferedMemory::OfferFiles(handles->path(), {&fd, 1}, context.deadline);
    if (!offer.ok()) return offer.status();
    v1::ImportArtifactRequest request;
    request.set_path("/what/the/client/said");
    request.set_offer_token((*offer)->token());
    request.add_shards("model.safetensors");
    request.set_verify(verify);
    return ingester->Import(context, request, /*asking=*/"", nullptr);
  }
  absl::StatusOr<v1::PutArtifactResult> ImportOpened(const std::string& path, bool verify = false) {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    EXPECT_TRUE(file) << path;
    return ImportFd(context, file.get(), verify);
  }
  void ExpectHasImage(const v1::PutArtifactResult& result) {
    auto lease = engine->LeaseReplica(result.replica().replica_id());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(testing::Gather((*lease)->memory().host->Spans(0, artifact.image.size())), artifact.image);
  }
};

TEST_F(OfferedFilesTest, OpenedFileOutsideImportRoots_IsImportedWithoutOrigin) {
  for (const bool verify : {false, true}) {
    store.published.clear();
    const auto result = ImportOpened(WriteOutside("m.safetensors"), verify);
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectHasImage(*result);
    ASSERT_THAT(store.published, SizeIs(1));
    EXPECT_FALSE(store.published[0].second.has_origin());
  }
}

TEST_F(OfferedFilesTest, OpenedFileInsideImportRoots_IsRecordedAsOrigin) {
  const std::string path = WriteModel("m.safetensors");
  const auto result = ImportOpened(path);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(store.published, SizeIs(1));
  ASSERT_EQ(store.published[0].second.origin().objects_size(), 1);
  EXPECT_THAT(store.published[0].second.origin().objects(0).uri(), HasSubstr("/models/m.safetensors"));
}

// The path leads to other bytes now: those that were opened are imported, and the path is not an origin.
TEST_F(OfferedFilesTest, OpenedFileThatWasReplaced_IsImportedAsOpened) {
  const std::string path = WriteModel("m.safetensors");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(rename(WriteModel("other.safetensors").c_str(), path.c_str()), 0);
  const auto result = ImportFd(context, file.get());
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectHasImage(*result);
  EXPECT_FALSE(store.published[0].second.has_origin());
}

TEST_F(OfferedFilesTest, OpenedFileThatIsNotRegular_IsRefusedByKind) {
  ASSERT_EQ(mkfifo((folder + "/fifo").c_str(), 0600), 0);
  const UniqueFd memory(memfd_create("memory", MFD_CLOEXEC));
  for (const auto& [status, said] :
       {std::pair(ImportOpened(folder + "/fifo").status(), "fifo: the path is a FIFO"),
        std::pair(ImportOpened("/dev/zero").status(), "/dev/zero: the path is a device"),
        std::pair(ImportOpened(folder).status(), "is a folder"),
        std::pair(ImportFd(context, memory.get()).status(), "is memory of a process")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
  EXPECT_THAT(store.published, IsEmpty());
}

TEST_F(OfferedFilesTest, OfferOfOtherKindForImport_IsRefused) {
  v1::ImportArtifactRequest request;
  request.set_offer_token("none");
  EXPECT_EQ(ingester->Import(context, request, "", nullptr).status().code(), absl::StatusCode::kNotFound);
  const UniqueFd file(open(WriteOutside("m.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = file.get();
  const auto offer = OfferedMemory::OfferFiles(handles->path(), {&fd, 1}, context.deadline);
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(sessions
                ->SourceOf(*sessions->TakeOffer((*offer)->token()), 1,
                           [&](std::string_view id) { return engine->LeaseReplica(id); })
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  const auto unnamed = OfferedMemory::OfferFiles(handles->path(), {&fd, 1}, context.deadline);
  ASSERT_TRUE(unnamed.ok()) << unnamed.status();
  request.set_offer_token((*unnamed)->token());
  EXPECT_EQ(ingester->Import(context, request, "", nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OfferedFilesTest, FilesWithoutTensors_BecomeAnArtifactOfFiles) {
  const std::string path = folder + "/config.json";
  std::ofstream(path) << "{}";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = file.get();
  const auto offer = OfferedMemory::OfferFiles(handles->path(), {&fd, 1}, context.deadline);
  ASSERT_TRUE(offer.ok()) << offer.status();
  v1::ImportArtifactRequest request;
  request.set_path("the files");
  request.set_offer_token((*offer)->token());
  request.add_files("config.json");
  const auto result = ingester->Import(context, request, "", nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  const auto lease = engine->LeaseReplica(result->replica().replica_id());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ((*lease)->manifest()->kind(), ArtifactKind::kFiles);
  ASSERT_THAT((*lease)->manifest()->layout().tensors, SizeIs(1));
  EXPECT_EQ((*lease)->manifest()->layout().tensors[0].name, "config.json");
}

TEST_F(OfferedFilesTest, ObjectOfAStore_IsRecordedAsUntraceable) {
  std::ifstream file(WriteOutside("m.safetensors"), std::ios::binary);
  const auto objects = std::make_shared<testing::MemoryObjects>();
  objects->Put("mem://models/m.safetensors", {std::istreambuf_iterator<char>(file), {}});
  v1::ImportArtifactRequest request;
  request.set_path("mem://models/m.safetensors");
  const auto opened = OpenModel(context, {.own = objects, .of_client = nullptr}, request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_THAT(opened->origin.objects, SizeIs(1));
  EXPECT_EQ(opened->origin.objects[0].uri, "mem://models/m.safetensors");
  EXPECT_TRUE(opened->origin.untraceable) << "it would count as a copy";
}

class HangingFileTest : public OfferedFilesTest {
 protected:
  void SetUp() override {
    OfferedFilesTest::SetUp();
    std::ifstream file(WriteOutside("m.safetensors"), std::ios::binary);
    std::filesystem::create_directory(folder + "/mount");
    auto mounted = HangingFolder::Mount(folder + "/mount", {std::istreambuf_iterator<char>(file), {}});
    if (!mounted.ok()) GTEST_SKIP() << mounted.status();
    hanging_ = *std::move(mounted);
  }
  // Imports the file, which hangs, as often as ingests may run at once. Their contexts end them.
  void StartImports(int count) {
    for (int i = 0; i < count; ++i) {
      contexts_.push_back(RequestContext::Background());
      imports_.emplace_back([this, mine = contexts_.back()] {
        const UniqueFd file(open(hanging_->file().c_str(), O_RDONLY | O_CLOEXEC));
        EXPECT_EQ(ImportFd(mine, file.get()).status().code(), absl::StatusCode::kCancelled);
      });
    }
  }
  void EndImports() {
    for (const RequestContext& one : contexts_) one.cancellation.Cancel();
    for (std::thread& import : imports_) import.join();
  }

  static constexpr int kIngestsAtOnce = 4;  // StoreEngine's default
  std::unique_ptr<HangingFolder> hanging_;
  std::vector<RequestContext> contexts_;
  std::vector<std::thread> imports_;
};

TEST_F(HangingFileTest, FileThatMayHang_IsImportedWhenItAnswers) {
  const auto result = ImportOpened(hanging_->file(), /*verify=*/true);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectHasImage(*result);
}

TEST_F(HangingFileTest, HangingFileReads_DoNotBlockOtherImports) {
  hanging_->HangReadsFrom(kMinChunkBytes);
  StartImports(kIngestsAtOnce);
  EXPECT_TRUE(testing::Eventually([&] { return hanging_->hanging_reads() >= kIngestsAtOnce; }));
  const auto other = Import(WriteModel("other.safetensors"));
  EXPECT_TRUE(other.ok()) << other.status();
  EndImports();
  EXPECT_TRUE(testing::Eventually([&] { return engine->ListReplicas().size() == 1; }))
      << "an import that was cancelled keeps its memory";
}

TEST_F(HangingFileTest, HangingFileHeader_LetsCancelledImportReturn) {
  const UniqueFd file(open(hanging_->file().c_str(), O_RDONLY | O_CLOEXEC));
  hanging_->HangReadsFrom(0);
  contexts_.push_back(RequestContext::Background());
  imports_.emplace_back(
      [&] { EXPECT_EQ(ImportFd(contexts_[0], file.get()).status().code(), absl::StatusCode::kCancelled); });
  EXPECT_TRUE(testing::Eventually([&] { return hanging_->hanging_reads() > 0; }));
  EndImports();
}

// The handle socket has one thread for all its clients.
TEST_F(HangingFileTest, HangingFileClose_DoesNotBlockHandleSocket) {
  const UniqueFd file(open(hanging_->file().c_str(), O_RDONLY | O_CLOEXEC));
  const std::vector<int> fds(2, file.get());
  hanging_->HangCloses();
  auto dropped = OfferedMemory::OfferFiles(handles->path(), fds, context.deadline);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  dropped->reset();
  EXPECT_TRUE(testing::Eventually([&] { return hanging_->hanging_closes() > 0; }));
  const auto other = ImportOpened(WriteOutside("other.safetensors"));
  EXPECT_TRUE(other.ok()) << other.status();
  hanging_.reset();  // before this process closes its own
}

}  // namespace
}  // namespace tensorcast::daemon::model_files_test
