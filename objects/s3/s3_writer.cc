#include "objects/s3/s3_writer.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "objects/http/xml.h"

namespace tensorcast::objects {
namespace {

// A small object is one PUT. A large one is an upload: Begin gets its id, several threads send its parts,
// Finish names the parts, and only then the object appears. An error in between aborts the upload, since the
// store keeps the parts until then.
constexpr uint64_t kMaxParts = 10'000;  // S3's limit
constexpr int kMaxTries = 3;            // of what HttpClient takes for an answer

// For each request with a body: libcurl would otherwise say that it is a form.
HttpHeaders ContentType() { return {{"content-type", "application/octet-stream"}}; }

// The body did not arrive as it was sent, or the store had a fault that it told too late for a status:
// sending it again may do.
bool IsWorthAnotherTry(const HttpReply& reply) {
  // Other statuses were answers, or HttpClient has tried again. S3 sends the 200 of CompleteMultipartUpload
  // before it is done, and an error may follow in its body.
  if (reply.status != 200 && reply.status != 400) return false;
  const absl::StatusOr<XmlElement> error = ParseXml(reply.body);
  if (!error.ok() || error->name != "Error") return false;
  const std::string_view code = error->TextOf("Code");
  return code == "RequestTimeout" || code == "XAmzContentSHA256Mismatch" || code == "BadDigest" ||
         code == "IncompleteBody" || code == "InternalError" || code == "SlowDown";
}

absl::StatusOr<HttpReply> SendAgain(const RequestContext& context, S3Client& client, const S3Call& call) {
  for (int tries = 1;; ++tries) {
    TC_ASSIGN_OR_RETURN(HttpReply reply, client.Send(context, call));
    if (!IsWorthAnotherTry(reply) || tries == kMaxTries) return reply;
  }
}

absl::StatusOr<XmlElement> ParseReply(std::string_view subject, const HttpReply& reply) {
  TC_RETURN_IF_ERROR(StatusOfS3Reply(subject, reply));
  absl::StatusOr<XmlElement> document = ParseXml(reply.body);
  if (!document.ok()) {
    return absl::UnavailableError(absl::StrCat(subject, ": the reply is malformed (",
                                               document.status().message(), "); check the endpoint"));
  }
  // An error behind a status of 200; see IsWorthAnotherTry.
  if (document->name == "Error") {
    return absl::UnavailableError(absl::StrCat(subject, ": the server answered ",
                                               Printable(document->TextOf("Code")), ": ",
                                               Printable(document->TextOf("Message")), "; try again later"));
  }
  return document;
}

absl::Time ParseTimeOf(std::string_view text) {
  absl::Time time;
  // An unknown time counts as the far future: what has no age must not be collected as old.
  return absl::ParseTime(absl::RFC3339_full, text, &time, nullptr) ? time : absl::InfiniteFuture();
}

// Calls `on_child` with each element of each page of a list. `next` pairs an element of a page, which says
// where the list goes on, with the parameter that takes its text in the next request.
absl::Status ForEachPage(const RequestContext& context, S3Client& client, const S3Name& prefix,
                         std::vector<std::pair<std::string, std::string>> query,
                         const std::vector<std::pair<std::string, std::string>>& next,
                         absl::FunctionRef<void(const XmlElement& child)> on_child) {
  const S3Name bucket{.bucket = prefix.bucket, .key = ""};
  const std::string subject = absl::StrCat("list ", client.UriOf(prefix));
  query.emplace_back("prefix", prefix.key);
  const size_t fixed = query.size();
  std::vector<std::string> markers(next.size());
  while (true) {
    TC_ASSIGN_OR_RETURN(const HttpReply reply,
                        client.Send(context, {.verb = "list", .name = bucket, .query = query}));
    TC_ASSIGN_OR_RETURN(const XmlElement page, ParseReply(subject, reply));
    for (const XmlElement& child : page.children) on_child(child);
    if (page.TextOf("IsTruncated") != "true") return absl::OkStatus();
    query.resize(fixed);
    std::vector<std::string> now;
    for (const auto& [element, parameter] : next) {
      now.emplace_back(page.TextOf(element));
      query.emplace_back(parameter, now.back());
    }
    // Pages that do not advance would never end. Two markers are compared together, since a key may have many
    // uploads.
    if (now == std::exchange(markers, now)) {
      return absl::UnavailableError(absl::StrCat(
          subject, ": the server gives no new page of a list that is not complete; check the endpoint"));
    }
  }
}

}  // namespace

// The parts of one upload, sent by several threads until all are there or one failed.
class S3Writer::Parts {
 public:
  Parts(const S3Writer& writer, const S3Name& name, std::string upload_id, uint64_t bytes,
        const FillBytes& fill)
      : writer_(writer),
        name_(name),
        upload_id_(std::move(upload_id)),
        bytes_(bytes),
        fill_(fill),
        // The size of the parts grows where S3's limit of their number asks for it.
        part_bytes_(std::max(writer.options_.part_bytes, (bytes + kMaxParts - 1) / kMaxParts)),
        etags_((bytes + part_bytes_ - 1) / part_bytes_) {}

  absl::StatusOr<std::vector<std::string>> Send(const RequestContext& context) {
    // A cancellation of its own: the first part that fails ends the others, and not the request of the
    // caller. A cancellation of the caller is passed on.
    RequestContext sending = context;
    sending.cancellation = Cancellation();
    const Cancellation::Registration cancelled =
        context.cancellation.OnCancel([ended = sending.cancellation] { ended.Cancel(); });
    const auto work = [&] {
      if (absl::Status sent = SendSome(sending); !sent.ok()) {
        absl::MutexLock lock(&mutex_);
        status_.Update(sent);  // the first one stays: the others were cancelled by it
        sending.cancellation.Cancel();
      }
    };
    std::vector<std::thread> helpers;
    const size_t threads = std::min<size_t>(etags_.size(), std::max(writer_.options_.parts_at_once, 1));
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads can be started: the upload takes longer.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(status_);
    return std::move(etags_);
  }

 private:
  absl::Status SendSome(const RequestContext& context) {
    // One buffer for all parts of this thread: memory is parts_at_once times the size of a part.
    std::string part(std::min(part_bytes_, bytes_), '\0');
    // The threads take the next part each, so that a slow one does not hold back the others.
    for (size_t i; (i = next_.fetch_add(1)) < etags_.size();) {
      TC_RETURN_IF_ERROR(context.Check(absl::StrCat("write ", writer_.client_->UriOf(name_))));
      const uint64_t offset = i * part_bytes_;
      const HostSpan bytes =
          std::as_writable_bytes(std::span(part)).first(std::min(part_bytes_, bytes_ - offset));
      TC_RETURN_IF_ERROR(fill_(context, offset, bytes));
      TC_ASSIGN_OR_RETURN(std::string etag, writer_.SendPart(context, name_, upload_id_, i + 1,
                                                             std::string_view(part).substr(0, bytes.size())));
      absl::MutexLock lock(&mutex_);
      etags_[i] = std::move(etag);
    }
    return absl::OkStatus();
  }

  const S3Writer& writer_;
  const S3Name& name_;
  const std::string upload_id_;
  const uint64_t bytes_;
  const FillBytes& fill_;
  const uint64_t part_bytes_;
  std::atomic<size_t> next_ = 0;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> etags_;  // its size does not change; the elements are written under mutex_
};

absl::Status S3Writer::Put(const RequestContext& context, const S3Name& name, uint64_t bytes,
                           const FillBytes& fill) const {
  std::string body(bytes, '\0');
  TC_RETURN_IF_ERROR(fill(context, 0, std::as_writable_bytes(std::span(body))));
  TC_ASSIGN_OR_RETURN(
      const HttpReply reply,
      SendAgain(context, *client_,
                {.verb = "write", .method = "PUT", .name = name, .headers = ContentType(), .body = body}));
  return StatusOfS3Reply(absl::StrCat("write ", client_->UriOf(name)), reply);
}

absl::StatusOr<std::string> S3Writer::Begin(const RequestContext& context, const S3Name& name) const {
  const std::string subject = absl::StrCat("write ", client_->UriOf(name));
  TC_ASSIGN_OR_RETURN(const HttpReply reply, client_->Send(context, {.verb = "write",
                                                                     .method = "POST",
                                                                     .name = name,
                                                                     .query = {{"uploads", ""}},
                                                                     .headers = ContentType()}));
  TC_ASSIGN_OR_RETURN(const XmlElement begun, ParseReply(subject, reply));
  std::string id(begun.TextOf("UploadId"));
  if (!id.empty()) return id;
  return absl::UnavailableError(absl::StrCat(subject, ": the reply has no upload id; check the endpoint"));
}

absl::StatusOr<std::string> S3Writer::SendPart(const RequestContext& context, const S3Name& name,
                                               const std::string& upload_id, size_t number,
                                               std::string_view bytes) const {
  const std::string subject = absl::StrCat("write ", client_->UriOf(name), ", part ", number);
  TC_ASSIGN_OR_RETURN(const HttpReply reply,
                      SendAgain(context, *client_,
                                {.verb = "write",
                                 .method = "PUT",
                                 .name = name,
                                 .query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload_id}},
                                 .headers = ContentType(),
                                 .body = bytes}));
  TC_RETURN_IF_ERROR(StatusOfS3Reply(subject, reply));
  std::string etag(reply.Header("etag"));
  if (!etag.empty()) return etag;
  return absl::UnavailableError(
      absl::StrCat(subject, ": the reply has no ETag of the part; check the endpoint"));
}

absl::Status S3Writer::Finish(const RequestContext& context, const S3Name& name, const std::string& upload_id,
                              const std::vector<std::string>& etags) const {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < etags.size(); ++i) {
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>",
                    // An ETag is the server's text, which must not become markup.
                    absl::StrReplaceAll(etags[i], {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}),
                    "</ETag></Part>");
  }
  absl::StrAppend(&body, "</CompleteMultipartUpload>");
  const std::string subject = absl::StrCat("write ", client_->UriOf(name));
  TC_ASSIGN_OR_RETURN(const HttpReply reply, SendAgain(context, *client_,
                                                       {.verb = "write",
                                                        .method = "POST",
                                                        .name = name,
                                                        .query = {{"uploadId", upload_id}},
                                                        .headers = {{"content-type", "application/xml"}},
                                                        .body = body}));
  return ParseReply(subject, reply).status();
}

absl::Status S3Writer::Upload(const RequestContext& context, const S3Name& name, uint64_t bytes,
                              const FillBytes& fill) const {
  TC_ASSIGN_OR_RETURN(const std::string upload_id, Begin(context, name));
  Parts parts(*this, name, upload_id, bytes, fill);
  absl::StatusOr<std::vector<std::string>> etags = parts.Send(context);
  absl::Status done = etags.ok() ? Finish(context, name, upload_id, *etags) : etags.status();
  if (done.ok()) return done;
  if (etags.ok() && absl::IsNotFound(done)) {
    // The upload is gone: it was finished by a request with a reply that was lost, or another process
    // aborted it. An object of that size in that many parts tells which.
    const absl::StatusOr<S3Object> made = client_->Head(context, name);
    if (made.ok() && made->bytes == bytes &&
        absl::StrContains(made->etag, absl::StrCat("-", etags->size(), "\""))) {
      return absl::OkStatus();
    }
  }
  // The context may have ended, and the parts must go all the same.
  const S3Upload upload{.uri = client_->UriOf(name), .id = upload_id, .begun = absl::InfiniteFuture()};
  const absl::Status aborted = Abort(RequestContext::Background(options_.abort_timeout), upload);
  if (aborted.ok()) return done;
  return absl::Status(done.code(),
                      absl::StrCat(done.message(), "; the written parts could not be removed (",
                                   aborted.message(), "); remove the parts with `tensorcast gc`"));
}

absl::StatusOr<ObjectIdentity> S3Writer::Write(const RequestContext& context, const std::string& uri,
                                               uint64_t bytes, const FillBytes& fill) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, uri));
  TC_RETURN_IF_ERROR(bytes <= options_.part_bytes ? Put(context, name, bytes, fill)
                                                  : Upload(context, name, bytes, fill));
  // The store is asked, since the reply to a PUT does not tell the size, and a reply may have been lost.
  TC_ASSIGN_OR_RETURN(ObjectIdentity written, Describe(context, uri));
  if (written.bytes == bytes) return written;
  return absl::DataLossError(absl::StrCat("write ", uri, ": ", bytes,
                                          " bytes were written, and the object has ", written.bytes,
                                          " bytes; check which other process writes this object"));
}

absl::StatusOr<ObjectIdentity> S3Writer::Describe(const RequestContext& context,
                                                  const std::string& uri) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, uri));
  TC_ASSIGN_OR_RETURN(const S3Object object, client_->Head(context, name));
  return client_->IdentityOf(name, object);
}

absl::Status S3Writer::Remove(const RequestContext& context, const std::string& uri) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, uri));
  TC_ASSIGN_OR_RETURN(const HttpReply reply,
                      client_->Send(context, {.verb = "remove", .method = "DELETE", .name = name}));
  const absl::Status status = StatusOfS3Reply(absl::StrCat("remove ", uri), reply);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<StoredObject>> S3Writer::List(const RequestContext& context,
                                                         const std::string& prefix) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, prefix));
  std::vector<StoredObject> objects;
  TC_RETURN_IF_ERROR(ForEachPage(
      context, *client_, name, {{"list-type", "2"}}, {{"NextContinuationToken", "continuation-token"}},
      [&](const XmlElement& child) {
        if (child.name != "Contents" || !absl::StartsWith(child.TextOf("Key"), name.key)) return;
        StoredObject& object = objects.emplace_back();
        object.uri = client_->UriOf({.bucket = name.bucket, .key = std::string(child.TextOf("Key"))});
        object.written = ParseTimeOf(child.TextOf("LastModified"));
        if (!absl::SimpleAtoi(child.TextOf("Size"), &object.bytes)) object.bytes = 0;
      }));
  std::ranges::sort(objects, {}, &StoredObject::uri);
  return objects;
}

absl::StatusOr<std::vector<S3Upload>> S3Writer::ListUploads(const RequestContext& context,
                                                            const std::string& prefix) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, prefix));
  std::vector<S3Upload> uploads;
  TC_RETURN_IF_ERROR(ForEachPage(
      context, *client_, name, {{"uploads", ""}},
      {{"NextKeyMarker", "key-marker"}, {"NextUploadIdMarker", "upload-id-marker"}},
      [&](const XmlElement& child) {
        if (child.name != "Upload" || !absl::StartsWith(child.TextOf("Key"), name.key)) return;
        S3Upload& upload = uploads.emplace_back();
        upload.uri = client_->UriOf({.bucket = name.bucket, .key = std::string(child.TextOf("Key"))});
        upload.id = child.TextOf("UploadId");
        upload.begun = ParseTimeOf(child.TextOf("Initiated"));
      }));
  return uploads;
}

absl::Status S3Writer::Abort(const RequestContext& context, const S3Upload& upload) const {
  TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, upload.uri));
  TC_ASSIGN_OR_RETURN(const HttpReply reply, client_->Send(context, {.verb = "abort the upload of",
                                                                     .method = "DELETE",
                                                                     .name = name,
                                                                     .query = {{"uploadId", upload.id}}}));
  const absl::Status status = StatusOfS3Reply(absl::StrCat("abort the upload of ", upload.uri), reply);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace tensorcast::objects
