#include "client/sealed_mappings.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::client {
namespace {

// Without all three, another process could change the bytes while the daemon digests them, or shorten the
// file under its reads.
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::string_view kMemfd = "/memfd:";

// Bits of an entry of /proc/self/pagemap.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

bool IsMemfd(const std::string& link) {
  char target[64];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return length > 0 && absl::StartsWith(std::string_view(target, length), kMemfd);
}

}  // namespace

// Pages of a private mapping that this process wrote are its own copies: the file does not have their
// bytes. Where the kernel does not tell, the answer is true, and the bytes are streamed.
bool HasOwnPages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return true;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  uint64_t page = begin / page_bytes;
  const uint64_t end = (begin + bytes.size() - 1) / page_bytes + 1;
  std::array<uint64_t, 1024> entries;
  while (page < end) {
    const uint64_t wanted = std::min<uint64_t>(end - page, entries.size());
    const ssize_t read = pread(pagemap.get(), entries.data(), wanted * sizeof(uint64_t),
                               static_cast<off_t>(page * sizeof(uint64_t)));
    if (read < static_cast<ssize_t>(sizeof(uint64_t))) return true;
    const size_t count = static_cast<size_t>(read) / sizeof(uint64_t);
    for (size_t i = 0; i < count; ++i) {
      // A page that was never touched has no bit set, and is read from the file.
      const bool exists = (entries[i] & (kPresent | kSwapped)) != 0;
      if (exists && (entries[i] & kOfFile) == 0) return true;
    }
    page += count;
  }
  return false;
}

// Two lists are joined by device and inode: which memory maps a memfd (maps), and which descriptors of memfds
// are sealed (fd). Only a file in both can be handed over.
SealedMappings SealedMappings::Read() {
  SealedMappings sealed;
  sealed.ReadMappings();
  if (!sealed.mappings_.empty()) sealed.OpenFiles();
  return sealed;
}

// The format is proc(5)'s. A line that does not fit it is passed over, and its memory streamed.
void SealedMappings::ReadMappings() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, kMemfd)) continue;
    uintptr_t begin = 0, end = 0;
    char access[5] = {};
    uint64_t offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64, &begin, &end,
                    access, &offset, &major, &minor, &inode) != 7) {
      continue;
    }
    mappings_[begin] = {
        .end = end, .file = {makedev(major, minor), inode}, .offset = offset, .is_private = access[3] == 'p'};
  }
}

void SealedMappings::OpenFiles() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string link = absl::StrCat("/proc/self/fd/", entry->d_name);
    if (!IsMemfd(link)) continue;
    // Another thread may close the number meanwhile: what was opened is what is asked.
    UniqueFd fd(fcntl(std::atoi(entry->d_name), F_DUPFD_CLOEXEC, 0));
    struct stat about{};
    if (!fd || (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals || fstat(fd.get(), &about) != 0) continue;
    files_.try_emplace(FileId{about.st_dev, about.st_ino}, std::move(fd));
  }
}

// Within one mapping alone: bytes across two are streamed.
std::optional<SealedMappings::Place> SealedMappings::Find(std::span<const std::byte> bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  auto found = mappings_.upper_bound(begin);
  if (found == mappings_.begin()) return std::nullopt;
  --found;
  const Mapping& mapping = found->second;
  if (begin > mapping.end || bytes.size() > mapping.end - begin) return std::nullopt;
  if (!files_.contains(mapping.file)) return std::nullopt;
  if (mapping.is_private && HasOwnPages(bytes)) return std::nullopt;
  return Place{.file = mapping.file, .offset = mapping.offset + (begin - found->first)};
}

}  // namespace tensorcast::client
