#include "objects/hf/hub_store.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "objects/hf/hub_cache.h"
#include "objects/hf/hub_name.h"
#include "objects/http/ranged_reader.h"

namespace tensorcast::objects {
namespace {

constexpr std::string_view kLane = "hf";

struct File {
  uint64_t bytes = 0;
  std::string version;
};
using Files = std::map<std::string, File>;  // of a commit, by path

// The parts of a header's value. Separators in quotes or in <…> do not separate.
std::vector<std::string_view> SplitValue(std::string_view value, char separator) {
  std::vector<std::string_view> parts;
  char closing = '\0';  // of the quotes or the <…> in which the loop is
  size_t begin = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    if (closing == '"' && c == '\\') {
      ++i;  // the character after it is text
    } else if (closing != '\0') {
      if (c == closing) closing = '\0';
    } else if (c == '"' || c == '<') {
      closing = c == '<' ? '>' : '"';
    } else if (c == separator) {
      parts.push_back(value.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(value.substr(begin));
  return parts;
}

bool IsRelNext(std::string_view parameter) {
  parameter = absl::StripAsciiWhitespace(parameter);
  return absl::EqualsIgnoreCase(parameter, "rel=\"next\"") || absl::EqualsIgnoreCase(parameter, "rel=next");
}

// The requests to one hub.
class Hub {
 public:
  Hub(std::shared_ptr<HttpClient> http, HubOptions options)
      : http_(std::move(http)), options_(std::move(options)) {}

  const HubOptions& options() const { return options_; }

  absl::StatusOr<std::string> CommitOf(const RequestContext& context, const HubName& name) {
    if (name.IsPinned()) return name.revision;
    const std::string subject = absl::StrCat("open ", name.Uri());
    // The revision is one component of the path, so its slashes are encoded.
    TC_ASSIGN_OR_RETURN(const Url url, UrlOf(absl::StrCat("/api/models/", name.repository, "/revision/",
                                                          EncodeComponent(name.revision))));
    TC_ASSIGN_OR_RETURN(const HttpReply reply, Ask(context, subject, url));
    const nlohmann::json json = nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    const auto sha = json.is_object() ? json.find("sha") : json.end();
    if (!json.is_object() || sha == json.end() || !sha->is_string() || !IsHex(sha->get<std::string>(), 40)) {
      return absl::UnavailableError(absl::StrCat(
          subject, ": the answer has no commit, so no hub answered; check the hub's address (HF_ENDPOINT)"));
    }
    return sha->get<std::string>();
  }

  // `name` is pinned.
  absl::StatusOr<Files> FilesOf(const RequestContext& context, const HubName& name) {
    const std::string subject = absl::StrCat("list ", name.Uri());
    TC_ASSIGN_OR_RETURN(Url url,
                        UrlOf(absl::StrCat("/api/models/", name.repository, "/tree/", name.revision)));
    url.query = "recursive=true";
    Files files;
    std::set<std::string> pages;
    while (true) {
      pages.insert(url.Text());
      TC_ASSIGN_OR_RETURN(const HttpReply reply, Ask(context, subject, url));
      const nlohmann::json page = nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
      if (!page.is_array() ||
          !std::all_of(page.begin(), page.end(), [&](const auto& entry) { return Add(entry, files); })) {
        return absl::UnavailableError(
            absl::StrCat(subject, ": the hub's list of files is malformed; check HF_ENDPOINT"));
      }
      // The hub cuts a long list into pages. The token goes with each request, so a page on another server is
      // refused, and a page that comes back would never end.
      const absl::StatusOr<std::optional<Url>> next = NextPage(url, reply.Header("link"));
      if (!next.ok()) {
        return absl::UnavailableError(absl::StrCat(
            subject, ": the hub's link to the next page of the list is malformed; check HF_ENDPOINT"));
      }
      if (!next->has_value()) return files;
      if (!SameOrigin(url, **next)) {
        return absl::UnavailableError(
            absl::StrCat(subject, ": the hub's link to the next page of the list leads to another server, ",
                         (*next)->Origin(), "; check HF_ENDPOINT"));
      }
      if (pages.contains((*next)->Text())) {
        return absl::UnavailableError(absl::StrCat(
            subject, ": the hub's link to the next page of the list leads back to a previous page; ",
            "check HF_ENDPOINT"));
      }
      url = **next;
    }
  }

  // Reads a range of a file, in the place where the last read found it. `place` keeps it for the next read.
  class Place;
  absl::Status Read(const RequestContext& context, const HubName& file, const RangedRead& read, Place& place);

 private:
  static bool Add(const nlohmann::json& entry, Files& files) {
    const auto text = [](const nlohmann::json& object, const char* name) {
      const auto found = object.find(name);
      return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
    };
    if (!entry.is_object()) return false;
    if (text(entry, "type") != "file") return true;
    const auto size = entry.find("size");
    const std::string path = text(entry, "path");
    if (size == entry.end() || !size->is_number_unsigned() || path.empty()) return false;
    File file{.bytes = size->get<uint64_t>(), .version = absl::StrCat("git:", text(entry, "oid"))};
    // Large files are in Git LFS, which names them by their SHA-256: the version can be checked after the
    // read. The id of another file is git's own hash, which covers more than the bytes.
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
      file.version = absl::StrCat("sha256:", text(*lfs, "oid"));
    }
    files.emplace(path, std::move(file));
    return true;
  }

  // The URL that a Link header (RFC 8288) names: <https://…>; rel="next". Null if `url` is the last page.
  static absl::StatusOr<std::optional<Url>> NextPage(const Url& url, std::string_view links) {
    for (const std::string_view link : SplitValue(links, ',')) {
      const std::vector<std::string_view> parts = SplitValue(link, ';');
      if (std::none_of(parts.begin() + 1, parts.end(), IsRelNext)) continue;
      std::string_view target = absl::StripAsciiWhitespace(parts[0]);
      if (!absl::ConsumePrefix(&target, "<") || !absl::ConsumeSuffix(&target, ">")) {
        return absl::InvalidArgumentError("the link has no <URL>");
      }
      TC_ASSIGN_OR_RETURN(Url next, ResolveLocation(url, target));
      return next;
    }
    return std::nullopt;
  }

  absl::StatusOr<Url> UrlOf(std::string_view path) const {
    return ParseUrl(absl::StrCat(absl::StripSuffix(options_.endpoint, "/"), path));
  }

  HttpRequest Request(std::string_view subject, Url url) const {
    HttpRequest request{.subject = std::string(subject),
                        .url = std::move(url),
                        .may_follow = options_.may_follow,
                        .may_be_local = options_.may_be_local};
    if (!options_.token.empty()) {
      request.authorize = [token = options_.token](const Url&) {
        return HttpHeaders{{"Authorization", absl::StrCat("Bearer ", token.Reveal())}};
      };
    }
    return request;
  }

  absl::StatusOr<HttpReply> Ask(const RequestContext& context, std::string_view subject, const Url& url) {
    TC_ASSIGN_OR_RETURN(HttpReply reply, http_->Fetch(context, Request(subject, url)));
    TC_RETURN_IF_ERROR(StatusOfReply(subject, reply, reply.Header("x-error-message")));
    return reply;
  }

  const std::shared_ptr<HttpClient> http_;
  const HubOptions options_;
};

// The signed URL to which the hub redirected the last read of a file. Several threads read one file; each
// uses the URL that it finds, and the last to be redirected sets it.
class Hub::Place {
 public:
  std::optional<Url> Get() const {
    absl::MutexLock lock(&mutex_);
    return url_;
  }
  void Set(std::optional<Url> url) {
    absl::MutexLock lock(&mutex_);
    url_ = std::move(url);
  }

 private:
  mutable absl::Mutex mutex_;
  std::optional<Url> url_ ABSL_GUARDED_BY(mutex_);  // signed: it is as good as a token
};

absl::Status Hub::Read(const RequestContext& context, const HubName& file, const RangedRead& read,
                       Place& place) {
  const std::string subject = absl::StrCat("read ", file.Uri());
  // The ETag of such a host is its own, not the hub's; the size is compared.
  if (const std::optional<Url> known = place.Get(); known.has_value()) {
    // This request has no token: the signed URL itself permits the read.
    HttpRequest request{.subject = subject,
                        .url = *known,
                        .read = read,
                        .may_follow = options_.may_follow,
                        .may_be_local = options_.may_be_local};
    TC_ASSIGN_OR_RETURN(const HttpReply reply, http_->Fetch(context, request));
    const absl::Status status = StatusOfReply(subject, reply);
    // 412 and 416 say that the bytes are others: a new place would not help. Any other 4xx is taken for an
    // expired signature, and the hub is asked below, which gives the real reason if there is another.
    if (reply.status / 100 != 4 || absl::IsFailedPrecondition(status)) return status;
    place.Set(std::nullopt);  // it expired
  }
  TC_ASSIGN_OR_RETURN(Url url, UrlOf(absl::StrCat("/", file.repository, "/resolve/", file.revision, "/",
                                                  EncodePath(file.path))));
  HttpRequest request = Request(subject, url);
  request.read = read;
  TC_ASSIGN_OR_RETURN(const HttpReply reply, http_->Fetch(context, request));
  TC_RETURN_IF_ERROR(StatusOfReply(subject, reply, reply.Header("x-error-message")));
  // Small files come from the hub itself, which needs the token each time: no place is kept for them.
  if (!SameOrigin(reply.url, url)) place.Set(reply.url);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const std::shared_ptr<Hub>& hub, const HubName& name,
                                                   const Files& files) {
  const auto file = files.find(name.path);
  if (file == files.end()) {
    return absl::NotFoundError(absl::StrCat(
        "open ", name.Uri(), ": the revision has no file with this name; check the name and the repository"));
  }
  ObjectIdentity identity{.uri = name.Uri(), .bytes = file->second.bytes, .version = file->second.version};
  return MakeRangedReader(std::move(identity), /*etag=*/"", NetworkTraits(kLane),
                          [hub, name, place = std::make_shared<Hub::Place>()](const RequestContext& context,
                                                                              const RangedRead& read) {
                            return hub->Read(context, name, read, *place);
                          });
}

class Folder final : public ObjectFolder {
 public:
  Folder(std::shared_ptr<Hub> hub, HubName name, Files files)
      : hub_(std::move(hub)), name_(std::move(name)), files_(std::move(files)) {}

  absl::StatusOr<std::vector<std::string>> List(const RequestContext& /*context*/) const override {
    std::vector<std::string> names;
    // `files_` has no folders: a file below the prefix makes one.
    const std::string prefix = name_.path.empty() ? "" : absl::StrCat(name_.path, "/");
    for (const auto& [path, file] : files_) {
      std::string_view below = path;
      if (absl::ConsumePrefix(&below, prefix)) names.emplace_back(below.substr(0, below.find('/')));
    }
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }
  absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& /*context*/,
                                                     size_t /*max*/) const override {
    std::vector<std::string> paths;
    const std::string prefix = name_.path.empty() ? "" : absl::StrCat(name_.path, "/");
    for (const auto& [path, file] : files_) {
      std::string_view below = path;
      if (absl::ConsumePrefix(&below, prefix) && !IsHiddenPath(below)) paths.emplace_back(below);
    }
    std::ranges::sort(paths);
    return paths;
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& /*context*/,
                                                     const std::string& name) const override {
    TC_RETURN_IF_ERROR(CheckBelow(name_.Uri(), name));
    HubName file = name_;
    file.path = name_.path.empty() ? name : absl::StrCat(name_.path, "/", name);
    return objects::Open(hub_, file, files_);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const HubName name_;
  const Files files_;
};

class Store final : public ObjectStore {
 public:
  explicit Store(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override {
    TC_ASSIGN_OR_RETURN(HubName name, HubName::Parse(uri));
    if (hub_->options().offline) return FindCached(context, name);
    // The hub is asked first, since only it knows to which commit a branch leads now. If it cannot be
    // reached, the cache answers with the commit of the last download. If the cache has nothing either, the
    // hub's error is the one that helps.
    const HubName asked = name;
    absl::StatusOr<Files> listed = FilesOfRevision(context, name);
    if (absl::IsUnavailable(listed.status())) {
      absl::StatusOr<FoundObject> cached = FindCached(context, asked);
      if (cached.ok()) return cached;
    }
    TC_ASSIGN_OR_RETURN(Files files, std::move(listed));
    // The commit is known, so the cache has the same files as the hub: their sizes show that all were
    // downloaded.
    if (IsCached(name, files)) return FindCached(context, name);

    FoundObject found;
    if (files.contains(name.path)) {
      TC_ASSIGN_OR_RETURN(found.object, objects::Open(hub_, name, files));
      return found;
    }
    const auto folder = std::make_shared<Folder>(hub_, name, std::move(files));
    TC_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder->List(context));
    if (names.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "open ", name.Uri(), ": the revision has no file or folder with this name; check the name"));
    }
    found.folder = folder;
    return found;
  }

  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override {
    TC_ASSIGN_OR_RETURN(const HubName name, HubName::Parse(object.uri));
    // The URI of an object has the commit in it, so this list is of the same commit as before.
    TC_ASSIGN_OR_RETURN(const Files files, hub_->FilesOf(context, name));
    TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> opened, objects::Open(hub_, name, files));
    TC_RETURN_IF_ERROR(CheckSameObject(object, opened->identity()));
    return opened;
  }

 private:
  // The files of the revision; `name` is pinned to its commit.
  absl::StatusOr<Files> FilesOfRevision(const RequestContext& context, HubName& name) const {
    TC_ASSIGN_OR_RETURN(name.revision, hub_->CommitOf(context, name));
    return hub_->FilesOf(context, name);
  }

  // Whether the file, or all safetensors files of the repository, are in the cache with their sizes. A folder
  // of a repository is not read there.
  bool IsCached(const HubName& name, const Files& files) const {
    if (hub_->options().files == nullptr) return false;
    const auto snapshot = CachedSnapshot(hub_->options().cache_folder, name);
    if (!snapshot.ok()) return false;
    bool any = false;
    for (const auto& [path, file] : files) {
      const bool asked = name.path.empty() ? absl::EndsWith(path, ".safetensors") : path == name.path;
      if (!asked) continue;
      std::error_code error;
      // A file that is missing has no size: the comparison fails for it, too.
      if (std::filesystem::file_size(absl::StrCat(*snapshot, "/", path), error) != file.bytes) return false;
      any = true;
    }
    return any;
  }

  absl::StatusOr<FoundObject> FindCached(const RequestContext& context, const HubName& name) const {
    if (hub_->options().files == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          "open ", name.Uri(),
          ": HF_HUB_OFFLINE is set, and this process may not read a cache of the hub; unset HF_HUB_OFFLINE"));
    }
    TC_ASSIGN_OR_RETURN(const std::string snapshot, CachedSnapshot(hub_->options().cache_folder, name));
    TC_ASSIGN_OR_RETURN(FoundObject found, hub_->options().files->Find(context, snapshot));
    if (name.path.empty()) return found;
    // Through the snapshot, since its links lead out of any folder in it.
    FoundObject file;
    TC_ASSIGN_OR_RETURN(file.object, found.folder->Open(context, name.path));
    return file;
  }

  const std::shared_ptr<Hub> hub_;
};

}  // namespace

std::unique_ptr<ObjectStore> MakeHubStore(std::shared_ptr<HttpClient> http, HubOptions options) {
  return std::make_unique<Store>(std::make_shared<Hub>(std::move(http), std::move(options)));
}

}  // namespace tensorcast::objects
