#include "tools/workshop/bench/slow_disk.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast::bench {
namespace {

constexpr uint64_t kFileSystemExtra = uint64_t{96} << 20;  // its tables and its journal
constexpr char kMkfs[] = "/usr/sbin/mkfs.ext4";
constexpr char kBlkio[] = "/sys/fs/cgroup/blkio";
constexpr absl::Duration kToolTimeout = absl::Seconds(60);

// What is missing here is not an error of the benchmark.
absl::Status CannotBeMade(const absl::Status& status) {
  return absl::FailedPreconditionError(
      absl::StrCat("slow a disk down: ", status.message(),
                   "; it takes root, loop devices and the blkio controller of cgroup v1"));
}

absl::Status Write(const std::string& path, const std::string& text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || write(file.get(), text.data(), text.size()) < 0) return ErrnoStatus(errno, "write", path);
  return absl::OkStatus();
}

absl::Status MakeFileSystem(const std::string& image, uint64_t bytes) {
  const UniqueFd file(open(image.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "create file", image);
  }
  const std::string log = image + ".log";
  TC_ASSIGN_OR_RETURN(const auto mkfs, Process::Start({.argv = {kMkfs, "-q", "-F", image}, .log_path = log}));
  TC_ASSIGN_OR_RETURN(const int code, mkfs->Wait(SteadyNow() + kToolTimeout));
  if (code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(kMkfs, " failed with code ", code, ": ", FileTail(log, 3)));
}

// The device of the file: it is given back when nothing uses it any more.
absl::StatusOr<UniqueFd> Attach(const std::string& image, std::string* path) {
  const UniqueFd file(open(image.c_str(), O_RDWR | O_CLOEXEC));
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!file || !control) return ErrnoStatus(errno, "open", "/dev/loop-control");
  loop_config config{};
  config.fd = static_cast<uint32_t>(file.get());
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
  // Another process may take the free device first.
  for (int tries = 0; tries < 8; ++tries) {
    const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return ErrnoStatus(errno, "find", "a free loop device");
    *path = absl::StrCat("/dev/loop", number);
    UniqueFd device(open(path->c_str(), O_RDWR | O_CLOEXEC));
    if (!device) return ErrnoStatus(errno, "open", *path);
    if (ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return device;
    if (errno != EBUSY) return ErrnoStatus(errno, "attach a file to", *path);
  }
  return absl::UnavailableError("attach a file to a loop device: each one was taken; try again");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlowDisk>> SlowDisk::Make(const std::string& directory, uint64_t bytes) {
  std::unique_ptr<SlowDisk> disk(new SlowDisk);
  if (const absl::Status made = disk->MakeAndMount(directory, bytes); !made.ok()) return CannotBeMade(made);
  return disk;
}

absl::Status SlowDisk::MakeAndMount(const std::string& directory, uint64_t bytes) {
  const std::string image = directory + "/disk.ext4";
  const std::string path = directory + "/disk";
  TC_RETURN_IF_ERROR(MakeFileSystem(image, bytes + kFileSystemExtra));
  if (mkdir(path.c_str(), 0700) != 0) return ErrnoStatus(errno, "create folder", path);
  std::string device_path;
  TC_ASSIGN_OR_RETURN(const UniqueFd device, Attach(image, &device_path));
  struct stat about{};
  if (fstat(device.get(), &about) != 0) return ErrnoStatus(errno, "stat", device_path);
  device_number_ = absl::StrCat(major(about.st_rdev), ":", minor(about.st_rdev));
  // A slave mount: mounts of the machine still arrive in this namespace, and the disk's mount does not leave
  // it.
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0) {
    return ErrnoStatus(errno, "make", "a mount namespace");
  }
  if (mount(device_path.c_str(), path.c_str(), "ext4", MS_NOATIME, nullptr) != 0) {
    return ErrnoStatus(errno, "mount", device_path);
  }
  path_ = path;
  return absl::OkStatus();
}

SlowDisk::~SlowDisk() {
  if (!path_.empty()) (void)umount2(path_.c_str(), MNT_DETACH);
  // Empty once the process has ended.
  if (!group_.empty()) (void)rmdir(group_.c_str());
}

absl::Status SlowDisk::Throttle(pid_t process, uint64_t bytes_per_second) {
  group_ = absl::StrCat(kBlkio, "/tensorcast-bench-", process);
  if (mkdir(group_.c_str(), 0700) != 0) {
    const int error = errno;
    return ErrnoStatus(error, "create the cgroup", std::exchange(group_, ""));
  }
  TC_RETURN_IF_ERROR(
      Write(group_ + "/blkio.throttle.read_bps_device", absl::StrCat(device_number_, " ", bytes_per_second)));
  return Write(group_ + "/cgroup.procs", absl::StrCat(process));
}

}  // namespace tensorcast::bench
