// Imports while another process changes the files: what is never read, never told, and never stored.
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/posix/unique_fd.h"
#include "base/testing/temp_folder.h"
#include "core/safetensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A safetensors file of one tensor with every byte equal to `fill`.
void WriteShard(const std::string& path, const std::string& tensor, char fill,
                const std::map<std::string, std::string>& metadata = {}) {
  constexpr uint64_t kBytes = 4096;
  const std::string header =
      *EncodeSafetensorsHeader({{.name = tensor, .shape = {kBytes}, .nbytes = kBytes}}, metadata);
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << header << std::string(kBytes, fill);
  const timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

// Exchanges two names when a file has been opened so many times, in a thread of its own.
class Swapper {
 public:
  Swapper(const std::string& watched, int opens, std::string a, std::string b)
      : inotify_(inotify_init1(IN_CLOEXEC)), a_(std::move(a)), b_(std::move(b)) {
    EXPECT_GE(inotify_add_watch(inotify_.get(), watched.c_str(), IN_OPEN), 0);
    thread_ = std::thread([this, opens] { Run(opens); });
  }
  ~Swapper() {
    stop_ = true;
    thread_.join();
    if (swapped_) Swap();
  }

  bool swapped() const { return swapped_; }

 private:
  void Run(int opens) {
    while (!stop_) {
      pollfd events{inotify_.get(), POLLIN, 0};
      if (poll(&events, 1, 10) == 0) continue;
      alignas(inotify_event) char event[sizeof(inotify_event)];  // of a file, so without a name
      if (read(inotify_.get(), event, sizeof(event)) == sizeof(event) && --opens == 0) {
        Swap();
        swapped_ = true;
        return;
      }
    }
  }
  void Swap() const { EXPECT_EQ(renameat2(AT_FDCWD, a_.c_str(), AT_FDCWD, b_.c_str(), RENAME_EXCHANGE), 0); }

  const UniqueFd inotify_;
  const std::string a_, b_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> swapped_ = false;
  std::thread thread_;
};

// The files of a sharded model are opened one after another. While that goes on, the folder of the last one
// is swapped for a link to a folder outside of the roots, with a file of the same name, size and mtime.
TEST(Import, FolderSwappedForLink_GivesNoBytesFromOutsideImportRoots) {
  constexpr int kShards = 100;
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const auto remote = RemoteClient(a);
  const std::string model = cluster.folder() + "/models/m";
  std::string index;
  const auto shard = [](int i) { return absl::StrCat(i + 1 == kShards ? "z/" : "", "s", 1000 + i); };
  for (int i = 0; i < kShards; ++i) {
    WriteShard(absl::StrCat(model, "/", shard(i)), absl::StrCat("t", i), 'd');
    absl::StrAppend(&index, index.empty() ? "" : ",", "\"t", i, "\":\"", shard(i), "\"");
  }
  std::ofstream(model + "/model.safetensors.index.json") << "{\"weight_map\":{" << index << "}}";
  const std::string last = absl::StrCat("t", kShards - 1);
  const std::string secret = cluster.folder() + "/secret";
  WriteShard(absl::StrCat(secret, "/", fs::path(shard(kShards - 1)).filename().string()), last, 'S');
  fs::permissions(secret + "/" + fs::path(shard(kShards - 1)).filename().string(), fs::perms::owner_read);
  fs::create_directory_symlink(secret, model + "/link");

  const auto undisturbed = remote->Import(Soon(), model, {});
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();

  int swaps = 0;
  for (int opens = 1; opens <= 4; ++opens) {
    for (int tries = 0; tries < 3; ++tries) {
      const Swapper swapper(absl::StrCat(model, "/", shard(0)), opens, model + "/z", model + "/link");
      const auto put = remote->Import(Soon(), model, {});
      swaps += swapper.swapped() ? 1 : 0;
      if (!put.ok()) {  // seen, and refused
        EXPECT_THAT(put.status().code(), ::testing::AnyOf(absl::StatusCode::kPermissionDenied,
                                                          absl::StatusCode::kFailedPrecondition))
            << put.status();
        continue;
      }
      const auto replica = a.client().Get(Soon(), put->artifact_id, {});
      ASSERT_TRUE(replica.ok()) << replica.status();
      const auto view = (*replica)->Find(last);
      ASSERT_TRUE(view.ok()) << view.status();
      ASSERT_EQ(std::ranges::count(view->host, std::byte{'S'}), 0) << "swapped at open " << opens;
    }
  }
  EXPECT_GT(swaps, 0) << "nothing was tested";
}

TEST(Import, DeniedImport_ErrorDoesNotRevealWhetherFileExists) {
  TestCluster cluster;
  const auto remote = RemoteClient(cluster.AddNode("a"));
  const std::string models = cluster.folder() + "/models";
  WriteShard(cluster.folder() + "/outside/secret", "t", 'S');
  fs::create_symlink(cluster.folder() + "/outside/secret", models + "/link");
  fs::create_symlink(cluster.folder() + "/outside/none", models + "/link-to-nothing");
  const auto told = [&](const std::string& path, const std::string& named) {
    const absl::Status status = remote->Import(Soon(), path, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    const std::string_view message = absl::StripPrefix(status.message(), absl::StrCat("import ", path, ": "));
    EXPECT_THAT(std::string(message), HasSubstr(named));
    return absl::StrReplaceAll(message, {{named, "PATH"}});
  };
  const std::string words = told(models + "/none", models + "/none");
  for (const char* path : {"/outside/secret", "/outside/none", "/outside", "/models/link",
                           "/models/link-to-nothing", "/models/../outside/secret", "/outside/secret/none"}) {
    EXPECT_EQ(told(cluster.folder() + path, cluster.folder() + path), words) << path;
  }
  // Nor does a model that names them as its shards.
  for (const char* shard : {"link", "link-to-nothing", "none"}) {
    std::ofstream(models + "/model.safetensors.index.json") << R"({"weight_map":{"t":")" << shard << "\"}}";
    EXPECT_EQ(told(models, models + "/" + shard), words) << shard;
  }
}

// The index is in the snapshot's folder, the files lie in another.
TEST(Import, ShardedModelInHubCache_IsReadAgainAfterEviction) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const std::string hub = cluster.folder() + "/models/hub";
  const std::string snapshot = hub + "/snapshots/main";
  fs::create_directories(snapshot);
  for (const char* shard : {"0", "1"}) {
    WriteShard(absl::StrCat(hub, "/blobs/", shard), absl::StrCat("t", shard), 'd');
    fs::create_symlink(absl::StrCat("../../blobs/", shard), absl::StrCat(snapshot, "/s", shard));
  }
  std::ofstream(snapshot + "/model.safetensors.index.json") << R"({"weight_map":{"t0":"s0","t1":"s1"}})";
  const auto put = a.client().Import(Soon(), snapshot, {});
  ASSERT_TRUE(put.ok()) << put.status();
  ASSERT_TRUE(a.admin().EvictReplica(Soon(), put->replica_id, true).ok());
  const auto replica = a.client().Get(Soon(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_THAT(LanesOf((*replica)->transfer()), ::testing::ElementsAre("disk"));
}

// Stores one value after another all over the bytes of a mapped file, front to back, for as long as it lives.
// So at any one moment the file begins with one value, and what is left of it has the value before.
class MappedWriter {
 public:
  MappedWriter(const std::string& path, uint64_t offset) : bytes_(fs::file_size(path)), offset_(offset) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    void* mapping = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(mapping, MAP_FAILED);
    file_ = static_cast<char*>(mapping);
    Store(1);
    thread_ = std::thread([this] {
      for (int value = 2; !stop_; ++value) Store(static_cast<char>(value));
    });
  }
  ~MappedWriter() {
    stop_ = true;
    thread_.join();
    munmap(const_cast<char*>(file_), bytes_);
  }

 private:
  // One byte after the other, which memset does not promise.
  void Store(char value) {
    for (uint64_t at = offset_; at < bytes_; ++at) file_[at] = value;
  }

  const uint64_t bytes_;
  const uint64_t offset_;
  volatile char* file_ = nullptr;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// As a MappedWriter's file is at one moment.
bool IsOfOneMoment(std::span<const std::byte> bytes) {
  const auto second = std::ranges::find_if(bytes, [&](std::byte b) { return b != bytes.front(); });
  if (second == bytes.end()) return true;
  const uint8_t before = static_cast<uint8_t>(static_cast<uint8_t>(bytes.front()) - 1);
  return std::all_of(second, bytes.end(), [&](std::byte b) { return b == std::byte{before}; });
}

// Held open until it is removed: so in_own_folder.sh sees that a test still uses it.
class Folder : public TempFolder {
 public:
  explicit Folder(const std::string& parent)
      : TempFolder(parent), open_(open(path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    EXPECT_TRUE(open_);
  }

 private:
  const UniqueFd open_;
};

bool IsOn(const std::string& folder, std::initializer_list<long> magic) {
  struct statfs disk;
  return statfs(folder.c_str(), &disk) == 0 && std::ranges::count(magic, disk.f_type) > 0;
}

// Imports a file again and again while it is written through a mapping: each time it is seen to change, or
// what is stored is the file as it was at one moment.
void ImportWhileMappedAndWritten(const std::string& folder, bool verify) {
  constexpr uint64_t kBytes = 24 << 20;
  TestCluster cluster;
  TestNode& a =
      cluster.AddNode("a", [&](daemon::DaemonOptions& options) { options.disk.import_roots = {folder}; });
  const std::string path = folder + "/written.safetensors";
  const std::string header =
      *EncodeSafetensorsHeader({{.name = "t", .shape = {kBytes}, .nbytes = kBytes}}, {});
  std::ofstream(path, std::ios::binary) << header << std::string(kBytes, '\0');
  {
    const MappedWriter writer(path, header.size());
    for (int i = 0; i < 15; ++i) {
      const auto put = a.client().Import(Soon(), path, {.verify = verify});
      if (!put.ok()) {
        EXPECT_THAT(put.status().code(),
                    ::testing::AnyOf(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted))
            << put.status();
        EXPECT_THAT(std::string(put.status().message()), HasSubstr(path));
        continue;
      }
      const auto replica = a.client().Get(Soon(), put->artifact_id, {});
      ASSERT_TRUE(replica.ok()) << replica.status();
      EXPECT_TRUE(IsOfOneMoment((*replica)->image())) << "torn and unnoticed at import " << i;
      ASSERT_TRUE(a.admin().DeleteArtifact(Soon(), put->artifact_id).ok());
      ASSERT_TRUE(Eventually([&] { return a.admin().ListReplicas(Soon(), "")->size() <= 1; }));
    }
  }
  const auto put = a.client().Import(Soon(), path, {.verify = verify});
  EXPECT_TRUE(put.ok()) << put.status();
}

// Their metadata holds the shards' names, which the second pass must know.
TEST(Import, ShardsWithDifferentMetadata_CanBeVerified) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const std::string model = cluster.folder() + "/models/m";
  WriteShard(model + "/1", "a", 'a', {{"part", "one"}});
  WriteShard(model + "/2", "b", 'b', {{"part", "two"}});
  std::ofstream(model + "/model.safetensors.index.json") << R"({"weight_map":{"a":"1","b":"2"}})";
  const auto put = a.client().Import(Soon(), model, {.verify = true});
  EXPECT_TRUE(put.ok()) << put.status();
}

// Size and mtime tell nothing of it where files are in memory.
TEST(Import, FileWrittenByMappingOnTmpfs_IsNotStoredTornIfVerified) {
  if (!IsOn("/dev/shm", {TMPFS_MAGIC})) GTEST_SKIP() << "/dev/shm is not tmpfs";
  const Folder folder("/dev/shm");
  ImportWhileMappedAndWritten(folder.path(), /*verify=*/true);
}

TEST(Import, FileWrittenByMappingOnDisk_IsNotStoredTorn) {
  const Folder folder(fs::current_path());
  if (!IsOn(folder.path(), {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC})) GTEST_SKIP() << "neither ext4 nor XFS";
  ImportWhileMappedAndWritten(folder.path(), /*verify=*/false);
}

}  // namespace
}  // namespace tensorcast::testing
