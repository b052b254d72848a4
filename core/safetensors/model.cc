#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"
#include "core/safetensors/index.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = kMaxSafetensorsHeaderBytes;
constexpr uint64_t kLengthBytes = sizeof(uint64_t);

// Exactly these bytes. DATA_LOSS when the file ends before them: it shrank since it was opened.
absl::StatusOr<std::string> ReadBytes(const OpenedFile& file, uint64_t offset, uint64_t bytes) {
  std::string data(bytes, '\0');
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count =
        pread(file.fd.get(), data.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "read", file.identity.path);
    if (count == 0) {
      return absl::DataLossError(absl::StrCat("the file ended at byte ", offset + done,
                                              ", while it was being read: does something still write it?"));
    }
    done += static_cast<uint64_t>(count);
  }
  return data;
}

// Reads and parses the header of a file; messages do not repeat the file's name.
absl::StatusOr<SafetensorsHeader> ReadHeader(const OpenedFile& file) {
  const uint64_t file_bytes = file.identity.bytes;
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has only ", file_bytes, " bytes: not a safetensors file"));
  }
  TC_ASSIGN_OR_RETURN(const std::string length, ReadBytes(file, 0, kLengthBytes));
  const uint64_t header_bytes = ByteReader(length).Get<uint64_t>();
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length of ", header_bytes,
                                                   " bytes is beyond the format's limit of ",
                                                   kMaxSafetensorsHeaderBytes, ": not a safetensors file"));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", header_bytes,
                                                   " bytes does not fit in the file of ", file_bytes,
                                                   " bytes: the file is truncated"));
  }
  TC_ASSIGN_OR_RETURN(const std::string header, ReadBytes(file, kLengthBytes, header_bytes));
  return ParseSafetensorsHeader(header, file_bytes - kLengthBytes - header_bytes);
}

std::string_view ParentOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

// A model's directory: opens files in it and keeps to it, also where links lead out of it.
class ModelDirectory {
 public:
  // `path` as it was given, for messages; `real` as the roots found it. The context and the roots must
  // outlive this.
  ModelDirectory(const RequestContext& context, const ImportRoots& roots, std::string path, std::string real)
      : context_(context), roots_(roots), path_(std::move(path)), folders_{std::move(real)} {
    // The layout of a model hub's download cache: <model>/snapshots/<revision>/ holds only links into
    // <model>/blobs/.
    const std::string_view snapshots = ParentOf(folders_[0]);
    if (absl::EndsWith(snapshots, "/snapshots")) {
      folders_.push_back(absl::StrCat(ParentOf(snapshots), "/blobs"));
    }
  }

  std::string PathOf(std::string_view name) const { return absl::StrCat(path_, "/", name); }

  absl::StatusOr<bool> Has(std::string_view name) const { return roots_.Has(folders_[0], std::string(name)); }

  absl::StatusOr<OpenedFile> Open(std::string_view name) const {
    return roots_.OpenFile(context_, PathOf(name), folders_);
  }

 private:
  const RequestContext& context_;
  const ImportRoots& roots_;
  const std::string path_;
  std::vector<std::string> folders_;  // where its files may lie, without links; the first is the directory
};

// Puts the files' tensors one behind the other.
class ModelBuilder {
 public:
  void Add(std::string_view shard, OpenedFile file, SafetensorsHeader header) {
    model_.files.push_back(std::move(file));
    model_.shards.emplace_back(shard);
    has_metadata_ |= header.has_metadata;
    for (auto& [key, value] : header.metadata) AddMetadata(shard, key, std::move(value));
    for (auto& entry : header.tensors) {
      file_offsets_.push_back(header.data_offset + entry.data.offset);
      file_of_.push_back(static_cast<uint32_t>(model_.files.size() - 1));
      model_.layout.tensors.push_back({.name = std::move(entry.name),
                                       .dtype = entry.dtype,
                                       .shape = std::move(entry.shape),
                                       .nbytes = entry.data.bytes});
    }
  }

  absl::StatusOr<SafetensorsModel> Build() && {
    if (has_metadata_ && model_.metadata.empty()) model_.metadata.emplace(kEmptyMetadataKey, "");
    TC_RETURN_IF_ERROR(AssignOffsets(model_.layout));
    for (size_t i = 0; i < model_.layout.tensors.size(); ++i) {
      AddExtent(file_of_[i], file_offsets_[i], model_.layout.tensors[i]);
    }
    return std::move(model_);
  }

 private:
  // The first shard that has a key keeps it; one that disagrees gets it under its own name.
  void AddMetadata(std::string_view shard, std::string key, std::string value) {
    for (;;) {
      const auto [entry, inserted] = model_.metadata.try_emplace(key, value);
      if (inserted || entry->second == value) return;
      key = absl::StrCat(shard, "/", key);
    }
  }

  // Joins what lies contiguously both in the file and in the image, so that it is read at once.
  void AddExtent(uint32_t file, uint64_t file_offset, const Tensor& tensor) {
    if (tensor.nbytes == 0) return;
    if (!model_.extents.empty()) {
      ObjectExtent& last = model_.extents.back();
      if (last.file == file && last.file_offset + last.bytes == file_offset &&
          last.image_offset + last.bytes == tensor.offset) {
        last.bytes += tensor.nbytes;
        return;
      }
    }
    model_.extents.push_back(
        {.file = file, .file_offset = file_offset, .image_offset = tensor.offset, .bytes = tensor.nbytes});
  }

  SafetensorsModel model_;
  bool has_metadata_ = false;
  std::vector<uint64_t> file_offsets_;  // of each tensor
  std::vector<uint32_t> file_of_;
};

// Reads a file; messages name it by its path.
absl::Status AddFile(std::string_view shard, OpenedFile file, ModelBuilder& builder) {
  const std::string path = file.identity.path;
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(file);
  if (!header.ok()) return Annotate(header.status(), path);
  builder.Add(shard, std::move(file), *std::move(header));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsIndex> ReadIndex(const ModelDirectory& directory) {
  TC_ASSIGN_OR_RETURN(const OpenedFile file, directory.Open(kIndexName));
  if (file.identity.bytes > kMaxIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.identity.bytes, " bytes are too many for an index: at most ", kMaxIndexBytes));
  }
  TC_ASSIGN_OR_RETURN(const std::string json, ReadBytes(file, 0, file.identity.bytes));
  return ParseSafetensorsIndex(json);
}

// The index and the shard must agree about what the shard holds. `expected` is how many tensors the index
// puts there.
absl::Status CheckShard(const SafetensorsIndex& index, const std::string& shard, size_t expected,
                        const SafetensorsHeader& header) {
  for (const auto& entry : header.tensors) {
    const auto mapped = index.weight_map.find(entry.name);
    if (mapped == index.weight_map.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it holds tensor ", QuoteName(entry.name), ", which the index does not name"));
    }
    if (mapped->second != shard) {
      return absl::InvalidArgumentError(absl::StrCat("it holds tensor ", QuoteName(entry.name),
                                                     ", which the index puts in ",
                                                     QuoteName(mapped->second)));
    }
  }
  if (header.tensors.size() == expected) return absl::OkStatus();
  absl::flat_hash_set<std::string_view> held;
  for (const auto& entry : header.tensors) held.insert(entry.name);
  std::string_view lacking;  // the first by name, so that the message does not depend on a hash
  for (const auto& [tensor, mapped] : index.weight_map) {
    if (mapped == shard && !held.contains(tensor) && (lacking.empty() || tensor < lacking)) lacking = tensor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it lacks tensor ", QuoteName(lacking), ", which the index puts there"));
}

absl::Status AddShard(const ModelDirectory& directory, const SafetensorsIndex& index,
                      const std::string& shard, size_t expected, ModelBuilder& builder) {
  TC_ASSIGN_OR_RETURN(OpenedFile file, directory.Open(shard));
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(file);
  if (!header.ok()) return Annotate(header.status(), directory.PathOf(shard));
  if (const absl::Status agrees = CheckShard(index, shard, expected, *header); !agrees.ok()) {
    return Annotate(agrees, directory.PathOf(shard));
  }
  builder.Add(shard, std::move(file), *std::move(header));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsModel> OpenSharded(const ModelDirectory& directory) {
  const absl::StatusOr<SafetensorsIndex> index = ReadIndex(directory);
  if (!index.ok()) return Annotate(index.status(), directory.PathOf(kIndexName));
  std::map<std::string, size_t> shards;  // and how many tensors each holds
  for (const auto& [tensor, shard] : index->weight_map) ++shards[shard];
  ModelBuilder builder;
  for (const auto& [shard, tensors] : shards) {
    TC_RETURN_IF_ERROR(AddShard(directory, *index, shard, tensors, builder));
  }
  absl::StatusOr<SafetensorsModel> model = std::move(builder).Build();
  return model.ok() ? std::move(model) : Annotate(model.status(), directory.PathOf(kIndexName));
}

absl::StatusOr<SafetensorsModel> OpenDirectory(const ModelDirectory& directory, const std::string& path) {
  TC_ASSIGN_OR_RETURN(const bool sharded, directory.Has(kIndexName));
  if (sharded) return OpenSharded(directory);
  TC_ASSIGN_OR_RETURN(const bool single, directory.Has(kSingleName));
  if (!single) {
    return absl::NotFoundError(absl::StrCat(path, " holds neither ", kIndexName, " nor ", kSingleName,
                                            ": name the .safetensors file itself"));
  }
  std::vector<OpenedFile> files(1);
  TC_ASSIGN_OR_RETURN(files[0], directory.Open(kSingleName));
  return ReadSafetensors(std::move(files));
}

}  // namespace

absl::StatusOr<SafetensorsModel> OpenSafetensors(const RequestContext& context, const ImportRoots& roots,
                                                 const std::string& path) {
  TC_ASSIGN_OR_RETURN(ImportRoots::Found found, roots.Find(context, path));
  if (found.is_folder) {
    return OpenDirectory(ModelDirectory(context, roots, path, std::move(found.path)), path);
  }
  std::vector<OpenedFile> files;
  files.push_back(std::move(found.file));
  return ReadSafetensors(std::move(files));
}

absl::StatusOr<SafetensorsModel> OpenSafetensors(const std::string& path) {
  return OpenSafetensors(RequestContext(), ImportRoots::Everything(), path);
}

absl::StatusOr<SafetensorsModel> ReadSafetensors(std::vector<OpenedFile> files) {
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const OpenedFile& file : files) paths.push_back(file.identity.path);
  return ReadSafetensors(std::move(files), paths);
}

absl::StatusOr<SafetensorsModel> ReadSafetensors(std::vector<OpenedFile> files,
                                                 const std::vector<std::string>& shards) {
  const std::string first = files.empty() ? "" : files[0].identity.path;
  ModelBuilder builder;
  for (size_t i = 0; i < files.size(); ++i) {
    TC_RETURN_IF_ERROR(AddFile(shards[i], std::move(files[i]), builder));
  }
  absl::StatusOr<SafetensorsModel> model = std::move(builder).Build();
  return model.ok() ? std::move(model) : Annotate(model.status(), first);
}

absl::StatusOr<SafetensorsModel> ReadSafetensorsAgain(std::vector<OpenedFile> files,
                                                      const std::vector<std::string>& shards,
                                                      const Manifest& manifest) {
  const std::string first = files.front().identity.path;
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, ReadSafetensors(std::move(files), shards));
  if (!SameImage(model.layout, manifest.layout()) || model.metadata != manifest.metadata()) {
    return absl::AbortedError(
        absl::StrCat("the header of ", first, " or of a file beside it was not the same when ",
                     "it was read a second time; import it when nothing writes it any more"));
  }
  return model;
}

}  // namespace tensorcast
