#include "core/disk/import_roots.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/steady_time.h"
#include "core/disk/mapped_pages.h"
#include "core/disk/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::import_roots_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// From here on what lies at the end of a path, and no folder, fails to be opened in this thread as on a mount
// that went away.
bool FailToOpenFiles(int error_number) {
  constexpr uint32_t kFileFlags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),  // the low half: little-endian
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kFileFlags, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class ImportRootsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root() + "/deep");
    fs::create_directories(Path("models-of-others"));
    WriteFile(root() + "/deep/model", "inside");
    WriteFile(Path("models-of-others/secret"), "secret");
  }
  std::string Path(const std::string& name) const { return folder_.File(name); }
  std::string root() const { return Path("models"); }
  ImportRoots Roots(const std::vector<std::string>& folders) const {
    auto roots = ImportRoots::Beneath(folders);
    EXPECT_TRUE(roots.ok()) << roots.status();
    return *std::move(roots);
  }
  static std::string Content(ObjectReader& file) {
    auto bytes = ReadBytes({}, file, 0, file.identity().bytes);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }
  // The file of that name in the folder.
  static absl::Status OpenIn(const ImportRoots& roots, const std::string& folder, const std::string& name,
                             const RequestContext& context = {}) {
    const auto found = roots.Find({}, folder);
    return found.ok() ? found->folder->Open(context, name).status() : found.status();
  }

  TestFolder folder_;
};

TEST_F(ImportRootsTest, Find_ResolvesLinksToFilesAndFoldersInRoot) {
  fs::create_directory_symlink(root(), Path("link-to-models"));
  fs::create_symlink("deep/model", root() + "/relative");
  fs::create_symlink(root() + "/deep/model", root() + "/absolute");
  const ImportRoots roots = Roots({Path("link-to-models")});
  for (const std::string& path : {root() + "/deep/model", root() + "/relative", root() + "/absolute",
                                  root() + "/deep/../deep/./model", Path("link-to-models/deep/model")}) {
    const auto found = roots.Find({}, path);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_NE(found->object, nullptr);
    EXPECT_EQ(found->object->identity(), IdentityOf(root() + "/deep/model"));
    EXPECT_EQ(Content(*found->object), "inside");
  }
  for (const std::string& path : {root(), root() + "/deep"}) {
    const auto found = roots.Find({}, path);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->object, nullptr);
    EXPECT_NE(found->folder, nullptr);
  }
}

TEST_F(ImportRootsTest, LinkBetweenRoots_IsFollowed) {
  fs::create_symlink("../models-of-others/secret", root() + "/link");
  EXPECT_FALSE(Roots({root()}).Find({}, root() + "/link").ok());
  const auto found = Roots({root(), Path("models-of-others")}).Find({}, root() + "/link");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->object->identity().uri, Path("models-of-others/secret"));
}

TEST_F(ImportRootsTest, UnreachableMount_IsUnavailableInsteadOfDenied) {
  const std::string path = root() + "/deep/model";
  const ImportRoots roots = Roots({root()});
  const ObjectIdentity identity = IdentityOf(path);
  const auto code_when = [&](int error_number) {
    absl::StatusCode code = absl::StatusCode::kOk;
    std::thread([&] {  // the filter ends with its thread
      ASSERT_TRUE(FailToOpenFiles(error_number));
      const absl::Status again = roots.OpenAgain({}, identity).status();
      const absl::Status found = roots.Find({}, path).status();
      EXPECT_EQ(again, found);
      EXPECT_THAT(again.message(), ::testing::Not(HasSubstr(strerror(error_number)))) << "the log says it";
      code = again.code();
    })
        .join();
    return code;
  };
  for (const int passing : {ESTALE, ETIMEDOUT, EHOSTDOWN, ENOTCONN, ENODEV, ENXIO}) {
    EXPECT_EQ(code_when(passing), absl::StatusCode::kUnavailable) << strerror(passing);
  }
  for (const int lasting : {ENOENT, ENOTDIR, EACCES, EPERM, ELOOP}) {
    EXPECT_EQ(code_when(lasting), absl::StatusCode::kPermissionDenied) << strerror(lasting);
  }
}

TEST_F(ImportRootsTest, PathOutsideRoots_GetsSameErrorWhetherItExists) {
  fs::create_symlink(Path("models-of-others/secret"), root() + "/out");
  fs::create_symlink(Path("models-of-others/none"), root() + "/out-to-nothing");
  fs::create_symlink("loop", root() + "/loop");
  const ImportRoots roots = Roots({root()});
  const auto words_of = [](const ImportRoots& asked, const std::string& path) {
    const absl::Status status = asked.Find({}, path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("open ", path, ": "))) << status;
    return absl::StrReplaceAll(status.message(), {{path, "PATH"}});
  };
  const auto words = [&](const std::string& path) { return words_of(roots, path); };
  const std::string outside = words(Path("models-of-others/secret"));
  EXPECT_THAT(outside, HasSubstr("import_roots (" + root() + ")"));
  for (const std::string& path :
       {Path("models-of-others/none"), Path("models-of-others"), Path("none"), root() + "-of-others/secret",
        root() + "/..", root() + "/out", root() + "/out-to-nothing", root() + "/loop", root() + "/none",
        root() + "/deep/model/none", Path("models-of-others/secret/none")}) {
    EXPECT_EQ(words(path), outside) << path;
  }
  const std::string without_roots = words_of(ImportRoots(), Path("none"));
  EXPECT_THAT(without_roots, HasSubstr("set daemon.import_roots"));
  EXPECT_EQ(words_of(ImportRoots(), Path("models-of-others/secret")), without_roots);
}

TEST_F(ImportRootsTest, UnreadablePath_GetsSameErrorAsMissingPath) {
  fs::create_directories(root() + "/closed");
  WriteFile(root() + "/closed/model", "theirs");
  WriteFile(root() + "/unreadable", "theirs");
  ASSERT_EQ(mkfifo((root() + "/unreadable-fifo").c_str(), 0), 0);
  fs::permissions(root() + "/unreadable", fs::perms::none);
  const ImportRoots roots = Roots({root()});
  const auto whole = roots.Find({}, root());
  const auto closed = roots.Find({}, root() + "/closed");
  ASSERT_TRUE(whole.ok() && closed.ok());
  fs::permissions(root() + "/closed", fs::perms::none);
  std::vector<std::string> told;
  const auto without = [](const absl::Status& refused, const std::string& path) {
    return absl::StrReplaceAll(refused.message(), {{path, "PATH"}});
  };
  // Only this thread becomes another user, which may not read what root may.
  std::thread other([&] {
    const bool is_root = geteuid() == 0;
    if (is_root && syscall(SYS_setresuid, -1, 65534, -1) != 0) return;
    for (const std::string name : {"none", "unreadable", "unreadable-fifo", "closed/model", "closed/none"}) {
      const std::string path = root() + "/" + name;
      told.push_back(without(roots.Find({}, path).status(), path));
      told.push_back(without(whole->folder->Open({}, name).status(), path));
    }
    told.push_back(without(closed->folder->List({}).status(), root() + "/closed"));
  });
  other.join();
  ASSERT_EQ(told.size(), 11u);
  EXPECT_THAT(told, ::testing::Each(told.front()));
  EXPECT_THAT(told.front(), HasSubstr("may not be read"));
  fs::permissions(root() + "/closed", fs::perms::owner_all);
}

TEST_F(ImportRootsTest, FindWithoutImportRoots_ErrorSaysWhatIsWrong) {
  const ImportRoots roots = ImportRoots::Everything();
  EXPECT_EQ(roots.Find({}, root() + "/none").status().code(), absl::StatusCode::kNotFound);
  fs::create_symlink("../models-of-others/secret", root() + "/out");
  const absl::Status out = OpenIn(roots, root(), "out");
  EXPECT_EQ(out.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(out.message()), HasSubstr(Path("models-of-others/secret")));
  EXPECT_TRUE(OpenIn(roots, folder_.path(), "models/out").ok());
}

// Each folder that is open while those below it are listed takes a descriptor.
TEST_F(ImportRootsTest, ListBelow_RefusesFoldersNestedTooDeep) {
  std::string deep = root();
  for (int i = 0; i < 32; ++i) deep += "/a";
  fs::create_directories(deep);
  WriteFile(deep + "/file", "bytes");
  for (const ImportRoots& roots : {Roots({root()}), ImportRoots::Everything()}) {
    const auto found = roots.Find({}, root());
    ASSERT_TRUE(found.ok()) << found.status();
    const auto paths = found->folder->ListBelow({}, 10);
    ASSERT_TRUE(paths.ok()) << paths.status();
    EXPECT_EQ(paths->size(), 2u);
  }
  fs::create_directories(deep + "/a");
  for (const ImportRoots& roots : {Roots({root()}), ImportRoots::Everything()}) {
    const absl::Status listed = roots.Find({}, root())->folder->ListBelow({}, 10).status();
    EXPECT_TRUE(absl::IsInvalidArgument(listed)) << listed;
    EXPECT_THAT(std::string(listed.message()), HasSubstr("more than 32"));
  }
}

TEST_F(ImportRootsTest, OnlyRegularFiles_AreOpened) {
  ASSERT_EQ(mkfifo((root() + "/fifo").c_str(), 0600), 0);
  for (const ImportRoots& roots : {Roots({root()}), ImportRoots::Everything()}) {
    EXPECT_EQ(roots.Find({}, root() + "/fifo").status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(OpenIn(roots, root(), "deep").code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ImportRoots::Everything().Find({}, "/dev/zero").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ImportRootsTest, InvalidPaths_AreRefused) {
  const ImportRoots roots = Roots({"/"});
  for (const std::string& path :
       {std::string(), std::string("relative"), std::string("/a\0b", 4), "/" + std::string(5000, 'a')}) {
    EXPECT_EQ(roots.Find({}, path).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ImportRootsTest, MissingRoot_ErrorNamesIt) {
  const absl::Status status = ImportRoots::Beneath({root(), Path("none")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("none")));
}

// The state that the loser of a race sees: the path was resolved when it held no link, and is opened now that
// it does. A file that is opened again goes by a path that was resolved earlier.
TEST_F(ImportRootsTest, LinkPlacedInResolvedPath_IsNotFollowed) {
  WriteFile(Path("models-of-others/model"), "sesame");
  for (const ImportRoots& roots : {Roots({root()}), ImportRoots::Everything()}) {
    const ObjectIdentity model = IdentityOf(root() + "/deep/model");  // being renamed changes its ctime
    const auto deep = roots.Find({}, root() + "/deep");
    ASSERT_TRUE(deep.ok()) << deep.status();
    ASSERT_TRUE(roots.OpenAgain({}, model).ok());
    fs::rename(root() + "/deep", root() + "/away");
    fs::create_directory_symlink(Path("models-of-others"), root() + "/deep");
    EXPECT_FALSE(roots.OpenAgain({}, model).ok()) << "a folder on the way is a link";
    EXPECT_FALSE(deep->folder->List({}).ok());
    fs::remove(root() + "/deep");
    fs::rename(root() + "/away", root() + "/deep");
    fs::rename(root() + "/deep/model", root() + "/deep/away");
    fs::create_symlink(Path("models-of-others/model"), root() + "/deep/model");
    EXPECT_FALSE(roots.OpenAgain({}, model).ok()) << "the file is a link";
    fs::rename(root() + "/deep/away", root() + "/deep/model");
  }
}

TEST_F(ImportRootsTest, WriteBackOfLargeFile_EndsAtDeadlineAndOnCancellation) {
  const std::string large = root() + "/large";
  WriteFile(large, "");
  if (truncate(large.c_str(), off_t{4} << 40) != 0) {
    GTEST_SKIP() << "no sparse files of 4 TiB here: " << std::strerror(errno);
  }
  const ImportRoots roots = Roots({root()});
  // Some 65,000 steps take longer than that, however little each has to write out.
  const auto soon = [] { return RequestContext{.deadline = SteadyNow() + absl::Milliseconds(1)}; };
  EXPECT_EQ(roots.Find(soon(), large).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(OpenIn(roots, root(), "large", soon()).code(), absl::StatusCode::kDeadlineExceeded);
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(roots.Find(cancelled, large).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ImportRootsTest, OpenAgain_RefusesChangedFileAndPathOutsideRoots) {
  const ImportRoots roots = Roots({root()});
  const ObjectIdentity model = IdentityOf(root() + "/deep/model");
  const auto again = roots.OpenAgain({}, model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Content(**again), "inside");
  const auto refused = [&](const auto& change) {
    FileVersion version = *FileVersion::Parse(model.version);
    change(version);
    return roots.OpenAgain({}, {model.uri, model.bytes, version.Text()}).status().code();
  };
  EXPECT_EQ(refused([](FileVersion& file) { ++file.mtime_ns; }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused([](FileVersion& file) { ++file.inode; }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused([](FileVersion& file) { ++file.device; }), absl::StatusCode::kFailedPrecondition);
  ObjectIdentity other = model;
  other.bytes += 1;
  EXPECT_EQ(roots.OpenAgain({}, other).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(roots.OpenAgain({}, IdentityOf(Path("models-of-others/secret"))).status().code(),
            absl::StatusCode::kPermissionDenied);
  other = model;
  other.uri = root() + "/../models-of-others/secret";
  EXPECT_FALSE(roots.OpenAgain({}, other).ok());
}

TEST_F(ImportRootsTest, MtimeSetBackAfterAWrite_IsFoundByTheCtime) {
  const ImportRoots roots = Roots({root()});
  const std::string path = root() + "/deep/model";
  const ObjectIdentity before = IdentityOf(path);
  const auto version = [&] { return *FileVersion::Parse(IdentityOf(path).version); };
  const FileVersion old = version();
  const timespec times[2] = {{0, UTIME_OMIT}, {old.mtime_ns / 1'000'000'000, old.mtime_ns % 1'000'000'000}};
  // Again while the file system's grain of time hides it.
  do {
    WriteFile(path, "INSIDE");
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  } while (version().ctime_ns == old.ctime_ns);
  ASSERT_EQ(version().mtime_ns, old.mtime_ns);
  ASSERT_EQ(IdentityOf(path).bytes, before.bytes);
  const absl::Status again = roots.OpenAgain({}, before).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("the ctime in ns was"));
}

TEST(UntraceableFileSystem, UntraceableFileSystem_NamesMemoryAndUserFileSystems) {
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x01021994}), "tmpfs");
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x858458f6}), "ramfs");
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x958458f6}), "hugetlbfs");
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x794c7630}), "overlayfs");
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x65735546}), "FUSE");
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0xef53}), "") << "ext4";
  EXPECT_EQ(UntraceableFileSystem(uint64_t{0x6969}), "") << "NFS";
  EXPECT_EQ(UntraceableFileSystemOf(UniqueFd(memfd_create("file", MFD_CLOEXEC)).get()), "tmpfs");
}

}  // namespace
}  // namespace tensorcast::import_roots_test
