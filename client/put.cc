// Client::Put: a new artifact at the daemon, from tensors of this process.

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/aside.h"
#include "base/status.h"
#include "base/text.h"
#include "client/base_order.h"
#include "client/handed_tensors.h"
#include "client/put_calls.h"
#include "client/put_image.h"
#include "client/session.h"
#include "core/artifact/object_uri.h"
#include "core/disk/import_roots.h"
#include "core/handles/ring_filler.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/safetensors.h"
#include "core/tensor/tensor.h"
#include "otel/api/span.h"
#include "rpc/call.h"

namespace tensorcast::client {
namespace {

// More threads than this gain nothing on one memory bus.
constexpr int kMaxFillThreads = 4;
constexpr size_t kTensorsPerMessage = 1000;

// Tensor descriptions by the thousand, so that no message nears gRPC's limit.
std::vector<v1::PutArtifactRequest> DescribeTensors(const ImageLayout& layout) {
  std::vector<v1::PutArtifactRequest> requests(1);
  for (const Tensor& tensor : layout.tensors) {
    if (requests.back().tensors_size() == kTensorsPerMessage) requests.emplace_back();
    auto* description = requests.back().add_tensors();
    description->set_name(tensor.name);
    description->set_dtype(std::string(DTypeName(tensor.dtype)));
    description->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
  return requests;
}

int FillThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxFillThreads);
}

// Page-locked while it lives, as far as the host allows: copies from GPUs are several times as fast then.
class PageLocked {
 public:
  PageLocked(DeviceRuntime* devices, HostSpan memory) : devices_(devices), base_(memory.data()) {
    if (devices == nullptr) return;
    status_ = devices->RegisterHost(base_, memory.size(), HostAccess::kReadWrite);
    LOG_IF(WARNING, !status_.ok()) << "page-lock memory for a put: " << status_
                                   << "; copies from GPUs are slower";
  }
  ~PageLocked() {
    if (devices_ != nullptr && status_.ok()) devices_->UnregisterHost(base_).IgnoreError();
  }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;

 private:
  DeviceRuntime* const devices_;  // null: it is not
  std::byte* const base_;
  absl::Status status_;
};

// A ring is good for one call, so each attempt has its own, and begins the image again.
// Two directions run at once: threads of RingFiller fill the slots of the ring that the daemon asks for,
// while the RPC streams the descriptions of the tensors and follows the progress. Either side's end ends the
// other: an error of a tensor cancels the call, and the end of the call stops the threads.
absl::Status PutOnce(Session& session, const RequestContext& context, const PutImage& image,
                     std::span<const HandedMemory> handed, std::vector<v1::PutArtifactRequest>& requests,
                     OnPutResponse on_response) {
  DaemonLink& link = *session.link;
  TC_ASSIGN_OR_RETURN(const std::string handle_socket, link.HandleSocket(context));
  absl::StatusOr<std::unique_ptr<RingFiller>> opened = RingFiller::Open(
      handle_socket, image.layout().image_bytes, context.deadline, context.cancellation, handed);
  TC_RETURN_IF_ERROR(context.Check(
      "wait for shared memory of the daemon"));  // rather than that the connection was shut down
  TC_RETURN_IF_ERROR(opened.status());
  RingFiller& filler = **opened;
  const PageLocked page_locked(image.on_devices() ? session.devices : nullptr, filler.slots());

  RequestContext call = context;
  call.cancellation = Cancellation();  // of its own: what cannot be read ends the call, too
  const Cancellation::Registration cancelled =
      context.cancellation.OnCancel([ended = call.cancellation] { ended.Cancel(); });
  TC_RETURN_IF_ERROR(filler.Start(
      FillThreads(),
      [&image](int thread, uint64_t offset, HostSpan to) { return image.Write(thread, offset, to); },
      [ended = call.cancellation] { ended.Cancel(); }));
  // The threads run before the call begins: the daemon asks for bytes as soon as it has read the token, and
  // ends a put of which the ring stays empty.
  requests.front().set_offer_token(filler.token());
  const absl::Status put =
      rpc::CallBidiStream(link.daemon(), &v1::StoreDaemon::Stub::PutArtifact, call, requests.size(),
                          [&](size_t i) { return requests[i]; }, on_response,
                          {.retry_for = absl::ZeroDuration(), .what = "stream the tensors"});
  // Before the memory that it fills is no longer page-locked.
  const absl::Status filled = filler.Stop();
  // Where a tensor could not be read the call was cancelled for that, so its own status says less.
  return filled.ok() ? put : filled;
}

// The layout and the requests are made once, since attempts differ only in the token of their ring.
absl::StatusOr<v1::PutArtifactResult> PutUnder(otel::Span& span, Session& session,
                                               const RequestContext& operation,
                                               std::span<const PutTensor> given,
                                               const std::map<std::string, std::string>& metadata,
                                               const PutOptions& options) {
  const std::vector<PutTensor> tensors = InOrderOfBase(session, operation, given, options);
  TC_ASSIGN_OR_RETURN(const PutImage image, PutImage::Create(tensors, session.devices, FillThreads()));
  std::vector<v1::PutArtifactRequest> requests = DescribeTensors(image.layout());
  TC_RETURN_IF_ERROR(SetPutOptions(options, requests.front()));
  requests.front().mutable_metadata()->insert(metadata.begin(), metadata.end());

  // Once for all attempts: which memory can be handed over depends on this process, not on the daemon.
  const std::vector<HandedMemory> handed = FindHandedTensors(tensors, image.layout());
  return FollowPut(span, operation, options, "put", [&](OnPutResponse on_response) {
    return PutOnce(session, operation, image, handed, requests, on_response);
  });
}

// What this process opens of files beside tensors that are not in a folder with them. Aside, since the file
// system may hang.
absl::StatusOr<FilesBeside> OpenFilesAt(const RequestContext& context,
                                        const std::vector<std::string>& paths) {
  return RunAside<FilesBeside>(context, "open the files", [context, paths]() -> absl::StatusOr<FilesBeside> {
    std::map<std::string, std::shared_ptr<ObjectReader>> opened;
    for (const std::string& path : paths) {
      TC_ASSIGN_OR_RETURN(const FoundObject found, ImportRoots::Everything().Find(context, path));
      FilesBeside files;
      if (found.folder != nullptr) {
        SafetensorsModel folder;
        folder.folder = found.folder;
        TC_ASSIGN_OR_RETURN(files, OpenFilesBeside(context, folder));
      } else {
        TC_ASSIGN_OR_RETURN(files,
                            FilesOf({found.object}, {std::filesystem::path(path).filename().string()}));
      }
      for (size_t i = 0; i < files.objects.size(); ++i) {
        const std::string& name = files.layout.tensors[i].name;
        if (opened.emplace(name, files.objects[i]).second) continue;
        return absl::InvalidArgumentError(absl::StrCat("open the files in ", absl::StrJoin(paths, ", "),
                                                       ": two files are called ", QuoteName(name),
                                                       "; pass only one of these files"));
      }
    }
    if (opened.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "open the files in ", absl::StrJoin(paths, ", "),
          ": the folders contain no files to store (weights and hidden files are left out); pass other "
          "paths, or no paths"));
    }
    std::vector<std::string> names;
    ObjectReaders objects;
    for (auto& [name, object] : opened) {
      names.push_back(name);
      objects.push_back(std::move(object));
    }
    return FilesOf(std::move(objects), names);
  });
}

// Stores the files and binds them with the tensors that `put` stored under the key. After these: files that
// no key binds may go when room is needed.
absl::Status BindFiles(otel::Span& span, DaemonLink& link, const RequestContext& operation,
                       const FilesBeside& files, PutOptions options, v1::PutArtifactResult& put) {
  v1::BindKeyRequest bind;
  bind.set_key(*options.key);
  options.key.reset();
  options.keep.reset();
  options.base = "none";
  options.require_difference = false;
  options.on_progress = nullptr;
  options.location = "cpu";
  v1::ImportArtifactRequest request;
  TC_RETURN_IF_ERROR(SetPutOptions(options, request));
  request.set_path("the files");
  std::vector<int> descriptors;
  for (const auto& object : files.objects) descriptors.push_back(object->descriptor());
  for (const Tensor& file : files.layout.tensors) request.add_files(file.name);
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult stored,
                      FollowPut(span, operation, options, "store the files", [&](OnPutResponse on_response) {
                        return ImportOnce(link, operation, descriptors, request, on_response);
                      }));
  if (put.files_id() == stored.artifact_id()) return absl::OkStatus();  // the key has inherited them
  bind.set_artifact_id(put.artifact_id());
  bind.set_expected_revision(put.key_revision());
  bind.set_files_id(stored.artifact_id());
  TC_ASSIGN_OR_RETURN(const v1::BindKeyResponse bound,
                      rpc::CallUnary(link.global_store(), &v1::GlobalStore::Stub::BindKey, operation, bind,
                                     {.what = "bind the files"}));
  put.set_key_revision(bound.key().revision());
  put.set_files_id(bound.key().files_id());
  return absl::OkStatus();
}

// The files are opened before the put, so that a wrong path stores nothing. They are bound after it: until
// then the key names the tensors, with the files that it inherited.
absl::StatusOr<v1::PutArtifactResult> PutWithFiles(otel::Span& span, Session& session,
                                                   const RequestContext& operation,
                                                   std::span<const PutTensor> tensors,
                                                   const std::map<std::string, std::string>& metadata,
                                                   const PutOptions& options) {
  if (options.files_at.empty()) return PutUnder(span, session, operation, tensors, metadata, options);
  if (!options.key.has_value()) {
    return absl::InvalidArgumentError("put: files need a key, and no key was given; name a key");
  }
  TC_ASSIGN_OR_RETURN(const FilesBeside files, OpenFilesAt(operation, options.files_at));
  TC_ASSIGN_OR_RETURN(v1::PutArtifactResult put,
                      PutUnder(span, session, operation, tensors, metadata, options));
  TC_RETURN_IF_ERROR(
      Annotate(BindFiles(span, *session.link, operation, files, options, put),
               absl::StrCat(put.artifact_id(), " is stored as ", *options.key, ", but without its files")));
  return put;
}

}  // namespace

absl::StatusOr<PutResult> Client::Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      const PutOptions& options) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Put", operation, {{otel::attr::kOperationType, "put"}});
  if (options.key.has_value()) span.SetAttribute(otel::attr::kKey, *options.key);
  span.AttachTo(&operation);
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result,
                      span.Record(PutWithFiles(span, *session_, operation, tensors, metadata, options)));
  return ResultOf(result);
}

}  // namespace tensorcast::client
