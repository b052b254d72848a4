#include "core/disk/offered_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/disk/mapped_pages.h"
#include "core/disk/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::offered_files_test {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<ObjectReader>> Describe(UniqueFd fd) {
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(fd));
  const absl::StatusOr<ObjectReaders> files = OpenOfferedFiles({}, std::move(fds));
  if (!files.ok()) return files.status();
  return files->front();
}

UniqueFd Open(const std::string& path, int flags = O_RDONLY) {
  return UniqueFd(open(path.c_str(), flags | O_CLOEXEC));
}

TEST(OfferedFiles, OfferedFile_HasPathSizeAndVersion) {
  TestFolder folder;
  const std::string path = folder.File("model");
  WriteFile(path, "bytes");
  const auto file = Describe(Open(path));
  ASSERT_TRUE(file.ok()) << file.status();
  const ObjectIdentity& identity = (*file)->identity();
  EXPECT_THAT(identity.uri, HasSubstr("/model"));
  EXPECT_EQ(identity.bytes, 5);
  EXPECT_EQ(identity.version, IdentityOf(path).version);
}

TEST(OfferedFiles, UnlinkedOfferedFile_IsDescribed) {
  TestFolder folder;
  const std::string path = folder.File("model");
  WriteFile(path, "bytes");
  UniqueFd fd = Open(path);
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_TRUE(Describe(std::move(fd)).ok());
}

TEST(OfferedFiles, OfferedFileThatIsNotRegular_IsRefusedByKind) {
  TestFolder folder;
  const auto refused = [](UniqueFd fd, const std::string& kind) {
    ASSERT_TRUE(fd) << kind;
    const absl::Status status = Describe(std::move(fd)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << kind << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kind));
  };
  refused(Open(folder.path()), "is a folder");
  ASSERT_EQ(mkfifo(folder.File("fifo").c_str(), 0600), 0);
  refused(Open(folder.File("fifo"), O_RDONLY | O_NONBLOCK), "is a FIFO");
  refused(Open("/dev/zero"), "is a device");
  refused(UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), "is a socket");
  refused(UniqueFd(memfd_create("memory", MFD_CLOEXEC)), "is memory of a process");
}

TEST(OfferedFiles, MayHang_IsFalseOnlyForLocalFileSystems) {
  TestFolder folder;
  const std::string path = folder.File("model");
  WriteFile(path, "bytes");
  EXPECT_FALSE(MayHang(Open(path).get()));
  EXPECT_TRUE(MayHang(Open("/proc/self/status").get())) << "a file system that is not known";
}

}  // namespace
}  // namespace tensorcast::offered_files_test
