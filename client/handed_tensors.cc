#include "client/handed_tensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "client/mapped_images.h"
#include "client/sealed_mappings.h"
#include "core/handles/codec.h"

namespace tensorcast::client {
namespace {

// Smaller tensors are streamed.
constexpr size_t kMinHandedBytes = size_t{64} << 10;

// What is handed over of one put, by the memory that it lies in.
class HandedTensors {
 public:
  void Add(const PutTensor& tensor, uint64_t image_offset) {
    if (parts_ == kMaxHandedParts) return;
    HandedPart part{.image_offset = image_offset, .bytes = tensor.bytes.size()};
    HandedMemory* const memory = MemoryOf(tensor.bytes, part.offset);
    if (memory == nullptr) return;
    memory->parts.push_back(part);
    ++parts_;
  }

  std::vector<HandedMemory> Take() && { return std::move(memories_); }

 private:
  // Null where the bytes are to be streamed, else what they lie in, at `offset`.
  HandedMemory* MemoryOf(std::span<const std::byte> bytes, uint64_t& offset) {
    // First what this process is attached to, which the daemon has already; then sealed memory, which
    // cannot change. All else is streamed.
    if (const auto place = MappedImages::OfProcess().Find(bytes); place.has_value()) {
      // A copy-on-write image that was written to no longer has the replica's bytes.
      if (place->writable && HasOwnPages(bytes)) return nullptr;
      offset = place->image_offset;
      HandedMemory replica;
      replica.pool_id = place->pool_id;
      replica.replica_id = place->replica_id;
      return Known(replicas_, std::pair(place->pool_id, place->replica_id), std::move(replica));
    }
    // Read once for a put, and only where a tensor may lie in sealed memory.
    if (!sealed_.has_value()) sealed_ = SealedMappings::Read();
    const auto place = sealed_->Find(bytes);
    if (!place.has_value()) return nullptr;
    offset = place->offset;
    if (const auto known = files_.find(place->file); known != files_.end()) return &memories_[known->second];
    HandedMemory file;
    struct stat about{};
    // A descriptor of the put's own: it stays valid when the caller closes its file meanwhile.
    file.memfd = UniqueFd(fcntl(sealed_->fd(place->file), F_DUPFD_CLOEXEC, 0));
    if (!file.memfd || fstat(file.memfd.get(), &about) != 0) return nullptr;
    file.bytes = static_cast<uint64_t>(about.st_size);
    // A mapping may reach past the end of its file, where reading is a SIGBUS.
    if (offset > file.bytes || bytes.size() > file.bytes - offset) return nullptr;
    return Known(files_, place->file, std::move(file));
  }

  template <class Key>
  HandedMemory* Known(std::map<Key, size_t>& known, const Key& key, HandedMemory memory) {
    if (const auto found = known.find(key); found != known.end()) return &memories_[found->second];
    // What is past the limit is streamed like all other tensors.
    if (memories_.size() == kMaxHandedMemories) return nullptr;
    known[key] = memories_.size();
    return &memories_.emplace_back(std::move(memory));
  }

  std::optional<SealedMappings> sealed_;                            // once it is asked for
  std::map<std::pair<std::string, std::string>, size_t> replicas_;  // by pool and replica, in memories_
  std::map<SealedMappings::FileId, size_t> files_;                  // likewise
  std::vector<HandedMemory> memories_;
  size_t parts_ = 0;
};

}  // namespace

std::vector<HandedMemory> FindHandedTensors(std::span<const PutTensor> tensors, const ImageLayout& layout) {
  HandedTensors handed;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device || tensors[i].bytes.size() < kMinHandedBytes) continue;
    handed.Add(tensors[i], layout.tensors[i].offset);
  }
  return std::move(handed).Take();
}

}  // namespace tensorcast::client
