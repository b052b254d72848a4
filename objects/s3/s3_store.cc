#include "objects/s3/s3_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "objects/http/ranged_reader.h"

namespace tensorcast::objects {
namespace {

absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                   const std::shared_ptr<S3Client>& client,
                                                   const S3Name& name, std::string_view version_id = "") {
  TC_ASSIGN_OR_RETURN(const S3Object object, client->Head(context, name, version_id));
  // The version is named in each read and its ETag compared: a bucket without versions notices a write by the
  // ETag alone.
  return MakeRangedReader(
      client->IdentityOf(name, object), object.etag,
      NetworkTraits(client->options().scheme == "gs" ? "gs" : "s3"),
      [client, name, id = object.version_id](const RequestContext& read_context, const RangedRead& read) {
        return client->Read(read_context, name, id, read);
      });
}

class Folder final : public ObjectFolder {
 public:
  // `prefix.key` is empty or ends at a '/'.
  Folder(std::shared_ptr<S3Client> client, S3Name prefix)
      : client_(std::move(client)), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::vector<std::string>> List(const RequestContext& context) const override {
    return client_->List(context, prefix_);
  }
  absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& context,
                                                     size_t max) const override {
    // One more than asked for says that there are more.
    return client_->List(context, prefix_, max + 1, /*delimiter=*/"");
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                     const std::string& name) const override {
    TC_RETURN_IF_ERROR(CheckBelow(client_->UriOf(prefix_), name));
    return objects::Open(context, client_,
                         {.bucket = prefix_.bucket, .key = absl::StrCat(prefix_.key, name)});
  }

 private:
  const std::shared_ptr<S3Client> client_;
  const S3Name prefix_;
};

class Store final : public ObjectStore {
 public:
  explicit Store(std::shared_ptr<S3Client> client) : client_(std::move(client)) {}

  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override {
    TC_ASSIGN_OR_RETURN(S3Name name, S3Name::Parse(client_->options().scheme, uri));
    FoundObject found;
    absl::Status missing = absl::NotFoundError(
        absl::StrCat("open ", uri, ": no object has this name or prefix; check the name"));
    if (!name.key.empty() && !absl::EndsWith(name.key, "/")) {
      absl::StatusOr<std::shared_ptr<ObjectReader>> object = objects::Open(context, client_, name);
      if (object.ok()) {
        found.object = *std::move(object);
        return found;
      }
      // Without the permission to list, a store denies what it does not have: it may be a folder all the
      // same.
      if (!absl::IsNotFound(object.status()) && !absl::IsPermissionDenied(object.status())) {
        return object.status();
      }
      // S3 has no folders: something lies below the name, or nothing does.
      missing = object.status();
      name.key += '/';
    }
    const auto some = client_->List(context, name, /*max_names=*/2);  // one may be the prefix itself
    if (!some.ok()) return absl::IsPermissionDenied(missing) ? missing : some.status();
    if (some->empty()) return missing;
    found.folder = std::make_shared<Folder>(client_, std::move(name));
    return found;
  }

  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override {
    TC_ASSIGN_OR_RETURN(const S3Name name, S3Name::Parse(client_->options().scheme, object.uri));
    std::string_view version_id = object.version;
    // Without versions the current object is opened, and the comparison below tells whether it is the same.
    if (!absl::ConsumePrefix(&version_id, kS3VersionId)) version_id = "";
    TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> opened,
                        objects::Open(context, client_, name, version_id));
    TC_RETURN_IF_ERROR(CheckSameObject(object, opened->identity()));
    return opened;
  }

 private:
  const std::shared_ptr<S3Client> client_;
};

}  // namespace

std::unique_ptr<ObjectStore> MakeS3Store(std::shared_ptr<HttpClient> http, S3Options options) {
  return std::make_unique<Store>(std::make_shared<S3Client>(std::move(http), std::move(options)));
}

}  // namespace tensorcast::objects
