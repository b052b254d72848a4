#include "tools/model/compare.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/handles/handles.h"
#include "core/status/status.h"

namespace tensorcast {
namespace {

class MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const OpenedFile& file) {
    const uint64_t bytes = file.identity.bytes;
    void* base = mmap(nullptr, std::max<uint64_t>(bytes, 1), PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    if (base == MAP_FAILED) return ErrnoStatus(errno, "map", file.identity.path);
    return std::unique_ptr<MappedFile>(new MappedFile(static_cast<const std::byte*>(base), bytes));
  }
  ~MappedFile() { munmap(const_cast<std::byte*>(base_), std::max<uint64_t>(bytes_, 1)); }
  const std::byte* base() const { return base_; }

 private:
  MappedFile(const std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  const std::byte* base_;
  uint64_t bytes_;
};

// The file bytes of a tensor; its extent may also cover neighbours.
const std::byte* FindInFiles(const Tensor& tensor, const SafetensorsModel& model,
                             const std::vector<std::unique_ptr<MappedFile>>& files) {
  for (const FileExtent& extent : model.extents) {
    if (tensor.offset < extent.image_offset ||
        tensor.offset - extent.image_offset + tensor.nbytes > extent.bytes)
      continue;
    return files[extent.file]->base() + extent.file_offset + (tensor.offset - extent.image_offset);
  }
  return nullptr;
}

absl::Status CompareTensor(const Tensor& tensor, const std::byte* expected, ConstHostSpan actual) {
  if (actual.size() != tensor.nbytes) {
    return absl::DataLossError(
        absl::StrCat("tensor ", tensor.name, " has ", actual.size(), " bytes, the file has ", tensor.nbytes));
  }
  if (std::memcmp(actual.data(), expected, actual.size()) == 0) return absl::OkStatus();
  const auto [at, unused] = std::mismatch(actual.begin(), actual.end(), expected);
  return absl::DataLossError(
      absl::StrCat("tensor ", tensor.name, " differs from the file at byte ", at - actual.begin()));
}

}  // namespace

absl::StatusOr<uint64_t> CompareWithModel(
    const std::string& model_path, const std::function<absl::StatusOr<ConstHostSpan>(const Tensor&)>& read) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(model_path));
  std::vector<std::unique_ptr<MappedFile>> files;
  for (const OpenedFile& file : model.files) {
    TC_ASSIGN_OR_RETURN(files.emplace_back(), MappedFile::Open(file));
  }
  uint64_t compared = 0;
  for (const Tensor& tensor : model.layout.tensors) {
    TC_ASSIGN_OR_RETURN(const ConstHostSpan actual, read(tensor));
    if (tensor.nbytes == 0) continue;
    const std::byte* expected = FindInFiles(tensor, model, files);
    if (expected == nullptr)
      return absl::InternalError(absl::StrCat("no file extent covers tensor ", tensor.name));
    TC_RETURN_IF_ERROR(CompareTensor(tensor, expected, actual));
    compared += tensor.nbytes;
  }
  return compared;
}

}  // namespace tensorcast
