// A library for LD_PRELOAD that makes file operations of a real process fail, so that the process needs no
// code for it.
//
// FAULTY_FILES names a file of rules, one a line, read anew at each operation; none there, no faults:
//
//   read EIO 1048576 /path/prefix
//   send flip 100000 socket:
//
// An operation (read, write, writeback, sync, send), what it does, from which offset on, and where. What it
// does: an error's name; `short`, at most half of what was asked for; `hold`, wait until the rule is gone;
// `flip`, a bit of each sent message of at least so many bytes, in the middle of its longest piece: data, and
// not the headers that go with it. The first operation that is held makes the
// file FAULTY_FILES + ".held".
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr size_t kMaxRules = 4096;  // bytes
constexpr size_t kBlock = 4096;     // of direct I/O, which is cut at blocks only

struct Rule {
  std::string effect;
  off_t from = 0;
};

// System calls and not functions: those are the ones replaced below.
std::string ReadRules(const char* path) {
  const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string rules(kMaxRules, '\0');
  const long size = syscall(SYS_read, fd, rules.data(), rules.size());
  syscall(SYS_close, fd);
  rules.resize(std::max(size, 0L));
  return rules;
}

std::string PathOf(int fd) {
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  char path[4096];
  const ssize_t size = readlink(link, path, sizeof(path));
  return size < 0 ? std::string() : std::string(path, size);
}

std::optional<Rule> FindRule(std::string_view operation, int fd, off_t offset) {
  const char* control = std::getenv("FAULTY_FILES");
  if (control == nullptr) return std::nullopt;
  std::istringstream rules(ReadRules(control));
  std::string wanted, prefix;
  Rule rule;
  while (rules >> wanted >> rule.effect >> rule.from >> prefix) {
    if (wanted == operation && offset >= rule.from && PathOf(fd).starts_with(prefix)) return rule;
  }
  return std::nullopt;
}

int ErrorOf(const std::string& name) {
  if (name == "ENOSPC") return ENOSPC;
  if (name == "EDQUOT") return EDQUOT;
  return EIO;
}

void Hold(std::string_view operation, int fd, off_t offset) {
  const std::string held = std::string(std::getenv("FAULTY_FILES")) + ".held";
  syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, held.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const timespec pause = {.tv_sec = 0, .tv_nsec = 1'000'000};
  for (auto rule = FindRule(operation, fd, offset); rule && rule->effect == "hold";) {
    nanosleep(&pause, nullptr);
    rule = FindRule(operation, fd, offset);
  }
}

// What is to happen to an operation of this many bytes: it takes so many, or fails with errno set.
struct Verdict {
  bool fails = false;
  size_t bytes = 0;
};

Verdict Judge(std::string_view operation, int fd, off_t offset, size_t bytes) {
  // The caller may read errno after a call that succeeds in the end. Reading the rules must not change it.
  const int kept = errno;
  std::optional<Rule> rule = FindRule(operation, fd, offset);
  if (rule && rule->effect == "hold") {
    Hold(operation, fd, offset);
    rule.reset();
  }
  errno = kept;
  if (!rule) return {.bytes = bytes};
  if (rule->effect == "short") {
    const size_t half = bytes / 2;
    return {.bytes =
                half >= kBlock ? half / kBlock * kBlock : std::max<size_t>(std::min<size_t>(bytes, 1), half)};
  }
  errno = ErrorOf(rule->effect);
  return {.fails = true};
}

size_t TotalBytes(const iovec* parts, int count) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += parts[i].iov_len;
  return total;
}

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

ssize_t PlainRead(int fd, iovec part, off_t offset) {
  return syscall(SYS_pread64, fd, part.iov_base, part.iov_len, offset);
}
ssize_t PlainWrite(int fd, iovec part, off_t offset) {
  return syscall(SYS_pwrite64, fd, part.iov_base, part.iov_len, offset);
}

// A copy of the message with one bit flipped, where a rule wants that; else nothing.
std::optional<std::vector<char>> Flipped(int fd, const iovec* parts, size_t count) {
  const size_t bytes = TotalBytes(parts, static_cast<int>(count));
  const int kept = errno;
  const std::optional<Rule> rule = FindRule("send", fd, static_cast<off_t>(bytes));
  errno = kept;
  if (!rule || rule->effect != "flip") return std::nullopt;
  std::vector<char> copy;
  copy.reserve(bytes);
  size_t longest = 0, flipped = 0;
  for (size_t i = 0; i < count; ++i) {
    if (parts[i].iov_len > longest) {
      longest = parts[i].iov_len;
      flipped = copy.size() + longest / 2;
    }
    const char* part = static_cast<const char*>(parts[i].iov_base);
    copy.insert(copy.end(), part, part + parts[i].iov_len);
  }
  copy[flipped] ^= 1;
  return copy;
}

}  // namespace

extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (const auto flipped = Flipped(fd, message->msg_iov, message->msg_iovlen)) {
    iovec whole = {const_cast<char*>(flipped->data()), flipped->size()};
    msghdr replaced = *message;
    replaced.msg_iov = &whole;
    replaced.msg_iovlen = 1;
    return syscall(SYS_sendmsg, fd, &replaced, flags);
  }
  return syscall(SYS_sendmsg, fd, message, flags);
}
ssize_t send(int fd, const void* from, size_t bytes, int flags) {
  const iovec whole = {const_cast<void*>(from), bytes};
  if (const auto flipped = Flipped(fd, &whole, 1)) {
    return syscall(SYS_sendto, fd, flipped->data(), bytes, flags, nullptr, 0);
  }
  return syscall(SYS_sendto, fd, from, bytes, flags, nullptr, 0);
}

ssize_t pread64(int fd, void* to, size_t bytes, off_t offset) {
  const Verdict verdict = Judge("read", fd, offset, bytes);
  return verdict.fails ? -1 : PlainRead(fd, {to, verdict.bytes}, offset);
}
ssize_t pread(int fd, void* to, size_t bytes, off_t offset) { return pread64(fd, to, bytes, offset); }

ssize_t preadv64v2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  static auto* const real = Real<ssize_t(int, const iovec*, int, off_t, int)>("preadv64v2");
  const size_t bytes = TotalBytes(parts, count);
  const Verdict verdict = Judge("read", fd, offset, bytes);
  if (verdict.fails) return -1;
  // A short operation uses the first buffer alone.
  if (verdict.bytes == bytes || count == 0) return real(fd, parts, count, offset, flags);
  const iovec first = {parts[0].iov_base, std::min(parts[0].iov_len, verdict.bytes)};
  return real(fd, &first, 1, offset, flags);
}
ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  return preadv64v2(fd, parts, count, offset, flags);
}

ssize_t pwrite64(int fd, const void* from, size_t bytes, off_t offset) {
  const Verdict verdict = Judge("write", fd, offset, bytes);
  return verdict.fails ? -1 : PlainWrite(fd, {const_cast<void*>(from), verdict.bytes}, offset);
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite64(fd, from, bytes, offset);
}

ssize_t pwritev64(int fd, const iovec* parts, int count, off_t offset) {
  static auto* const real = Real<ssize_t(int, const iovec*, int, off_t)>("pwritev64");
  const size_t bytes = TotalBytes(parts, count);
  const Verdict verdict = Judge("write", fd, offset, bytes);
  if (verdict.fails) return -1;
  if (verdict.bytes == bytes || count == 0) return real(fd, parts, count, offset);
  // Calls may always do less than they are asked to.
  return PlainWrite(fd, {parts[0].iov_base, std::min(parts[0].iov_len, verdict.bytes)}, offset);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return pwritev64(fd, parts, count, offset);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  const Verdict verdict = Judge("write", fd, lseek(fd, 0, SEEK_CUR), bytes);
  return verdict.fails ? -1 : syscall(SYS_write, fd, from, verdict.bytes);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  const size_t bytes = TotalBytes(parts, count);
  const Verdict verdict = Judge("write", fd, lseek(fd, 0, SEEK_CUR), bytes);
  if (verdict.fails) return -1;
  if (verdict.bytes == bytes || count == 0) return syscall(SYS_writev, fd, parts, count);
  return syscall(SYS_write, fd, parts[0].iov_base, std::min(parts[0].iov_len, verdict.bytes));
}

int fsync(int fd) {
  if (Judge("sync", fd, 0, 0).fails) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int sync_file_range(int fd, off_t offset, off_t bytes, unsigned int flags) {
  // Only a caller that waits is told of an error.
  if ((flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0 && Judge("writeback", fd, 0, 0).fails) return -1;
  return static_cast<int>(syscall(SYS_sync_file_range, fd, offset, bytes, flags));
}
int fdatasync(int fd) {
  if (Judge("sync", fd, 0, 0).fails) return -1;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

}  // extern "C"
