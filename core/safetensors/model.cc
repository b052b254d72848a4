#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/index.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
// The first that is there.
constexpr std::string_view kSingleNames[] = {"model.safetensors", "adapter_model.safetensors"};
constexpr uint64_t kMaxIndexBytes = kMaxSafetensorsHeaderBytes;
constexpr uint64_t kLengthBytes = sizeof(uint64_t);

// Whether the text has a remedy, behind a ';'. Names may have a ';' too, but they are in quotes.
bool HasRemedy(std::string_view text) { return absl::StrContains(text.substr(text.rfind('"') + 1), ';'); }

// Completes an error of opening `uri`. The parsers name only causes, for which there is one remedy: a file
// that is whole. An error that tells how to convert a file has a remedy already.
absl::Status Unreadable(const absl::Status& why, const std::string& uri) {
  const std::string operation = absl::StrCat("open ", uri);
  if (!absl::IsInvalidArgument(why) || HasRemedy(why.message())) return Annotate(why, operation);
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": ", why.message(), "; write or download the file again"));
}

// The name of a format that is not read here, with how to convert it; empty for any other file. Where the
// file has not been opened (`begin` is empty), its name decides.
std::string_view HowToConvert(std::string_view begin, std::string_view name) {
  // torch.save writes a zip file, older releases a pickle of protocol 2.
  const bool zip_or_pickle = begin.starts_with("PK\x03\x04") || begin.starts_with("\x80\x02");
  if (zip_or_pickle || name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) {
    return "a PyTorch checkpoint, and loading such a file can run any code; load the checkpoint if you trust "
           "its source, and save the tensors with safetensors.torch.save_file or save_pretrained";
  }
  if (begin.starts_with("GGUF") || name.ends_with(".gguf")) {
    return "a GGUF file; use the safetensors files from which the GGUF file was made, or load the GGUF file "
           "with transformers' from_pretrained(..., gguf_file=...) and save the model with save_pretrained";
  }
  return "";
}

// Reads and parses the header of a file; messages do not repeat the file's name.
absl::StatusOr<SafetensorsHeader> ReadHeader(const RequestContext& context, ObjectReader& object) {
  const uint64_t file_bytes = object.identity().bytes;
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file is not a safetensors file, since the file has only ", file_bytes, " bytes"));
  }
  TC_ASSIGN_OR_RETURN(const std::string length, ReadBytes(context, object, 0, kLengthBytes));
  const uint64_t header_bytes = ByteReader(length).Get<uint64_t>();
  // In a file of another format these bytes mean something else, mostly a huge number.
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    if (const std::string_view how = HowToConvert(length, ""); !how.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the file is ", how));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the file is not a safetensors file, since the header would have ", header_bytes,
                     " bytes, and the format allows at most ", kMaxSafetensorsHeaderBytes, " bytes"));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file is truncated: the header of ", header_bytes,
                                                   " bytes does not fit in the file's ", file_bytes,
                                                   " bytes"));
  }
  TC_ASSIGN_OR_RETURN(const std::string header, ReadBytes(context, object, kLengthBytes, header_bytes));
  return ParseSafetensorsHeader(header, file_bytes - kLengthBytes - header_bytes);
}

// Collects the tensors of all objects in the order in which they are added. Offsets in the image are known
// only in Build, when all tensors are there, so the place of each tensor in its object is kept until then.
class ModelBuilder {
 public:
  void Add(std::string_view shard, std::shared_ptr<ObjectReader> object, SafetensorsHeader header) {
    model_.objects.push_back(std::move(object));
    model_.shards.emplace_back(shard);
    has_metadata_ |= header.has_metadata;
    for (auto& [key, value] : header.metadata) AddMetadata(shard, key, std::move(value));
    for (auto& entry : header.tensors) {
      offsets_.push_back(header.data_offset + entry.data.offset);
      object_of_.push_back(static_cast<uint32_t>(model_.objects.size() - 1));
      model_.layout.tensors.push_back({.name = std::move(entry.name),
                                       .dtype = entry.dtype,
                                       .shape = std::move(entry.shape),
                                       .nbytes = entry.data.bytes});
    }
  }

  absl::StatusOr<SafetensorsModel> Build() && {
    // Empty metadata and none are two headers, and both are written again as they were.
    if (has_metadata_ && model_.metadata.empty()) model_.metadata.emplace(kEmptyMetadataKey, "");
    TC_RETURN_IF_ERROR(AssignOffsets(model_.layout));
    for (size_t i = 0; i < model_.layout.tensors.size(); ++i) {
      AddExtent(object_of_[i], offsets_[i], model_.layout.tensors[i]);
    }
    return std::move(model_);
  }

 private:
  // The first shard that has a key keeps it; one that disagrees gets it under its own name.
  void AddMetadata(std::string_view shard, std::string key, std::string value) {
    for (;;) {
      const auto [entry, inserted] = model_.metadata.try_emplace(key, value);
      if (inserted || entry->second == value) return;
      // That key may be taken with another value, too, so it is tried in the same way.
      key = absl::StrCat(shard, "/", key);
    }
  }

  // Joins what lies contiguously both in the object and in the image, so that it is read at once.
  void AddExtent(uint32_t object, uint64_t object_offset, const Tensor& tensor) {
    if (tensor.nbytes == 0) return;
    if (!model_.extents.empty()) {
      ObjectExtent& last = model_.extents.back();
      if (last.object == object && last.object_offset + last.bytes == object_offset &&
          last.image_offset + last.bytes == tensor.offset) {
        last.bytes += tensor.nbytes;
        return;
      }
    }
    model_.extents.push_back({.object = object,
                              .object_offset = object_offset,
                              .image_offset = tensor.offset,
                              .bytes = tensor.nbytes});
  }

  SafetensorsModel model_;
  bool has_metadata_ = false;
  std::vector<uint64_t> offsets_;  // of each tensor in its object
  std::vector<uint32_t> object_of_;
};

absl::StatusOr<SafetensorsIndex> ReadIndex(const RequestContext& context, const ObjectFolder& folder) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectReader> object,
                      folder.Open(context, std::string(kIndexName)));
  const uint64_t bytes = object->identity().bytes;
  if (bytes > kMaxIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the index has ", bytes, " bytes, and at most ", kMaxIndexBytes,
                     " bytes are allowed; check that this file is the index of a safetensors model"));
  }
  TC_ASSIGN_OR_RETURN(const std::string json, ReadBytes(context, *object, 0, bytes));
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
          absl::StrCat("the file holds tensor ", QuoteName(entry.name), ", which the index does not name"));
    }
    if (mapped->second != shard) {
      return absl::InvalidArgumentError(absl::StrCat("the file holds tensor ", QuoteName(entry.name),
                                                     ", which the index puts in ",
                                                     QuoteName(mapped->second)));
    }
  }
  // Each tensor of the shard is one that the index puts there, so equal counts mean that none is missing.
  if (header.tensors.size() == expected) return absl::OkStatus();
  absl::flat_hash_set<std::string_view> held;
  for (const auto& entry : header.tensors) held.insert(entry.name);
  std::string_view lacking;  // the first by name, so that the message does not depend on a hash
  for (const auto& [tensor, mapped] : index.weight_map) {
    if (mapped == shard && !held.contains(tensor) && (lacking.empty() || tensor < lacking)) lacking = tensor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the file lacks tensor ", QuoteName(lacking), ", which the index puts in this file"));
}

// `expected`: how many tensors the index puts there.
absl::Status AddShard(const RequestContext& context, const SafetensorsIndex& index, const std::string& shard,
                      size_t expected, std::shared_ptr<ObjectReader> object, ModelBuilder& builder) {
  TC_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(context, *object));
  TC_RETURN_IF_ERROR(CheckShard(index, shard, expected, header));
  builder.Add(shard, std::move(object), std::move(header));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsModel> OpenSharded(const RequestContext& context, const ObjectFolder& folder,
                                             const std::string& uri) {
  const std::string index_uri = absl::StrCat(uri, "/", kIndexName);
  const absl::StatusOr<SafetensorsIndex> index = ReadIndex(context, folder);
  if (!index.ok()) return Unreadable(index.status(), index_uri);
  // By name, since the order of the shards is the order of the image: so two hosts make the same artifact of
  // the same files.
  std::map<std::string, size_t> shards;  // and how many tensors each holds
  for (const auto& [tensor, shard] : index->weight_map) ++shards[shard];
  ModelBuilder builder;
  for (const auto& [shard, tensors] : shards) {
    TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> object, folder.Open(context, shard));
    const absl::Status added = AddShard(context, *index, shard, tensors, std::move(object), builder);
    if (!added.ok()) return Unreadable(added, absl::StrCat(uri, "/", shard));
  }
  absl::StatusOr<SafetensorsModel> model = std::move(builder).Build();
  return model.ok() ? std::move(model) : Unreadable(model.status(), index_uri);
}

// A folder that may be entered but not listed still holds a model: its two possible names are tried.
absl::StatusOr<SafetensorsModel> OpenFolder(const RequestContext& context, const ObjectFolder& folder,
                                            const std::string& uri) {
  const absl::StatusOr<std::vector<std::string>> names = folder.List(context);
  const bool unlisted = absl::IsPermissionDenied(names.status());
  if (!unlisted) TC_RETURN_IF_ERROR(names.status());
  const auto has = [&](std::string_view name) {
    if (!unlisted) return std::ranges::binary_search(*names, name);
    // An object that is refused counts as absent. Another error is reported when the file is opened for
    // reading.
    const absl::Status opened = folder.Open(context, std::string(name)).status();
    return !absl::IsNotFound(opened) && !absl::IsPermissionDenied(opened);
  };
  if (has(kIndexName)) return OpenSharded(context, folder, uri);
  const auto single = std::ranges::find_if(kSingleNames, has);
  if (single == std::end(kSingleNames)) {
    const std::string looked_for = absl::StrCat(kIndexName, " nor ", absl::StrJoin(kSingleNames, " nor "));
    if (unlisted) {
      return Annotate(names.status(),
                      absl::StrCat("open ", uri, ": the folder cannot be listed, and neither ", looked_for,
                                   " in the folder can be read"));
    }
    for (const std::string& name : *names) {
      if (const std::string_view how = HowToConvert("", name); !how.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("open ", uri, ": the folder holds neither ",
                                                       looked_for, ", and ", name, " is ", how));
      }
    }
    return absl::NotFoundError(absl::StrCat("open ", uri, ": the folder holds neither ", looked_for,
                                            "; give the path or URI of the .safetensors file instead"));
  }
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> object, folder.Open(context, std::string(*single)));
  return ReadSafetensors(context, {std::move(object)});
}

}  // namespace

absl::StatusOr<SafetensorsModel> OpenSafetensors(const RequestContext& context, const ObjectStore& store,
                                                 const std::string& uri) {
  TC_ASSIGN_OR_RETURN(FoundObject found, store.Find(context, uri));
  if (found.folder != nullptr) {
    TC_ASSIGN_OR_RETURN(SafetensorsModel model, OpenFolder(context, *found.folder, uri));
    model.folder = std::move(found.folder);
    return model;
  }
  return ReadSafetensors(context, {std::move(found.object)});
}

absl::StatusOr<SafetensorsModel> OpenSafetensors(const std::string& path) {
  return OpenSafetensors(RequestContext(), ImportRoots::Everything(), path);
}

absl::StatusOr<SafetensorsModel> ReadSafetensors(const RequestContext& context, const ObjectReaders& objects,
                                                 std::vector<std::string> shards) {
  ModelBuilder builder;
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::string& uri = objects[i]->identity().uri;
    absl::StatusOr<SafetensorsHeader> header = ReadHeader(context, *objects[i]);
    if (!header.ok()) return Unreadable(header.status(), uri);
    builder.Add(shards.empty() ? uri : shards[i], objects[i], *std::move(header));
  }
  absl::StatusOr<SafetensorsModel> model = std::move(builder).Build();
  return model.ok() || objects.empty() ? std::move(model)
                                       : Unreadable(model.status(), objects[0]->identity().uri);
}

absl::Status ReadSafetensorsAgain(const RequestContext& context, const Manifest& manifest,
                                  SafetensorsModel& model) {
  TC_ASSIGN_OR_RETURN(model, ReadSafetensors(context, model.objects, model.shards));
  if (SameImage(model.layout, manifest.layout()) && model.metadata == manifest.metadata()) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("compare the headers of ", model.objects.front()->identity().uri,
                                         " and of the model's other files: a header changed between two "
                                         "reads; import the model again when no process writes to the "
                                         "files"));
}

}  // namespace tensorcast
