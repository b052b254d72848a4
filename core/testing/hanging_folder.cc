#include "core/testing/hanging_folder.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::testing {
namespace {

constexpr size_t kRequestBytes = size_t{1} << 17;  // at least FUSE_MIN_READ_BUFFER
constexpr uint64_t kFileNode = 2;
constexpr char kFileName[] = "model.safetensors";

// The kernel sends each operation on the folder as a request on the descriptor of /dev/fuse, and the calling
// process sleeps until this thread writes the answer. An operation hangs when no answer is written.
fuse_attr AttributesOf(uint64_t node, uint64_t file_bytes) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.nlink = 1;
  attributes.mode = node == kFileNode ? S_IFREG | 0644 : S_IFDIR | 0755;
  attributes.size = node == kFileNode ? file_bytes : 0;
  attributes.mtime = 1'000'000'000;
  attributes.blksize = 4096;
  return attributes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HangingFolder>> HangingFolder::Mount(const std::string& path,
                                                                    std::string content) {
  UniqueFd device(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) return absl::UnavailableError(ErrnoStatus(errno, "open", "/dev/fuse").message());
  const std::string options =
      absl::StrCat("fd=", device.get(), ",rootmode=40000,user_id=0,group_id=0,allow_other");
  if (mount("tensorcast-test", path.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "mount", path).message());
  }
  return std::unique_ptr<HangingFolder>(new HangingFolder(path, std::move(content), std::move(device)));
}

HangingFolder::HangingFolder(std::string path, std::string content, UniqueFd device)
    : path_(std::move(path)), content_(std::move(content)), device_(std::move(device)) {
  thread_ = std::thread([this] { Serve(); });
}

// MNT_FORCE ends the connection: operations that hang fail with ECONNABORTED, and the thread's read fails,
// too. MNT_DETACH takes the mount away although files of it may still be open.
HangingFolder::~HangingFolder() {
  umount2(path_.c_str(), MNT_FORCE);
  umount2(path_.c_str(), MNT_DETACH);
  thread_.join();
}

void HangingFolder::Serve() {
  std::vector<char> request(kRequestBytes);
  while (true) {
    const ssize_t size = read(device_.get(), request.data(), request.size());
    if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // unmounted
    Answer(request.data());
  }
}

void HangingFolder::Answer(const char* request) {
  fuse_in_header in;
  std::memcpy(&in, request, sizeof(in));
  const char* const body = request + sizeof(in);
  switch (in.opcode) {
    case FUSE_INIT: {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = FUSE_KERNEL_MINOR_VERSION;
      out.max_write = 1 << 16;
      return Reply(in.unique, 0, &out, sizeof(out));
    }
    case FUSE_LOOKUP: {
      if (std::strcmp(body, kFileName) != 0) return Reply(in.unique, -ENOENT, nullptr, 0);
      fuse_entry_out out{};
      out.nodeid = kFileNode;
      out.attr = AttributesOf(kFileNode, content_.size());
      return Reply(in.unique, 0, &out, sizeof(out));
    }
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr = AttributesOf(in.nodeid, content_.size());
      return Reply(in.unique, 0, &out, sizeof(out));
    }
    case FUSE_OPEN: {
      fuse_open_out out{};
      out.open_flags = FOPEN_DIRECT_IO;  // each read comes here
      return Reply(in.unique, 0, &out, sizeof(out));
    }
    case FUSE_READ: {
      fuse_read_in read;
      std::memcpy(&read, body, sizeof(read));
      if (read.offset >= hang_reads_from_) {
        ++hanging_reads_;
        return;
      }
      const uint64_t begin = std::min<uint64_t>(read.offset, content_.size());
      return Reply(in.unique, 0, content_.data() + begin,
                   std::min<uint64_t>(read.size, content_.size() - begin));
    }
    // close(2) waits for the answer to FLUSH; RELEASE comes later, and no process waits for it.
    case FUSE_FLUSH:
      if (hang_closes_) {
        ++hanging_closes_;
        return;
      }
      return Reply(in.unique, 0, nullptr, 0);
    case FUSE_RELEASE:
      return Reply(in.unique, 0, nullptr, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // these have no answer
    default:
      return Reply(in.unique, -ENOSYS, nullptr, 0);
  }
}

void HangingFolder::Reply(uint64_t unique, int error, const void* body, size_t bytes) {
  fuse_out_header out{};
  out.len = static_cast<uint32_t>(sizeof(out) + bytes);
  out.error = error;
  out.unique = unique;
  const iovec parts[] = {{&out, sizeof(out)}, {const_cast<void*>(body), bytes}};
  // The write fails where the asking process was killed meanwhile.
  [[maybe_unused]] const ssize_t written = writev(device_.get(), parts, bytes > 0 ? 2 : 1);
}

}  // namespace tensorcast::testing
