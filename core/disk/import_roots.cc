#include "core/disk/import_roots.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/text.h"
#include "core/disk/file_io.h"
#include "core/disk/file_reader.h"
#include "core/disk/mapped_pages.h"

namespace tensorcast {
namespace {

// The folders that may lie in each other below a folder that is listed. Each takes a descriptor and a buffer
// while the folders in it are listed.
constexpr int kMaxNesting = 32;

// With the slash: /models does not hold /models-old.
bool LiesIn(std::string_view real, std::string_view folder) {
  return folder == "/" || real == folder || absl::StartsWith(real, absl::StrCat(folder, "/"));
}

std::string_view ParentOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool LiesInOne(std::string_view real, std::span<const std::string> folders) {
  return std::ranges::any_of(folders, [&](const std::string& folder) { return LiesIn(real, folder); });
}

absl::StatusOr<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&free)> resolved(realpath(path.c_str(), nullptr), &free);
  if (resolved == nullptr) return FileError(errno, "open", path);
  return std::string(resolved.get());
}

// An O_PATH descriptor of what lies at a real path. Follows no link: where one has come to stand since the
// path was resolved, it fails, or opens the link itself when that is the last component.
// (openat2 with RESOLVE_NO_SYMLINKS does the same, but some sandboxes forbid it.)
absl::StatusOr<UniqueFd> Walk(const std::string& real) {
  UniqueFd at(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const std::vector<std::string> parts = absl::StrSplit(real, '/', absl::SkipEmpty());
  for (size_t i = 0; at && i < parts.size(); ++i) {
    if (parts[i] == "." || parts[i] == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat("open ", real, ": the recorded path contains \"", parts[i],
                       "\", and an import records only resolved paths; import the model again"));
    }
    const int folder_only = i + 1 < parts.size() ? O_DIRECTORY : 0;
    at = UniqueFd(openat(at.get(), parts[i].c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC | folder_only));
  }
  if (!at) return FileError(errno, "open", real);
  return at;
}

// The file behind a descriptor, whatever now lies where it was found.
std::string Behind(int entry) { return absl::StrCat("/proc/self/fd/", entry); }

// As the open that would follow: by the descriptor, and by the rights of the effective user.
bool MayRead(int entry) { return faccessat(AT_FDCWD, Behind(entry).c_str(), R_OK, AT_EACCESS) == 0; }

}  // namespace

absl::StatusOr<ImportRoots> ImportRoots::Beneath(const std::vector<std::string>& folders) {
  ImportRoots roots;
  for (const std::string& folder : folders) {
    absl::StatusOr<std::string> real = RealPath(folder);
    if (!real.ok()) return Annotate(real.status(), "set daemon.import_roots");
    roots.folders_.push_back(*std::move(real));
  }
  return roots;
}

ImportRoots ImportRoots::Everything() {
  ImportRoots roots;
  roots.folders_ = {"/"};
  roots.tells_why_ = true;
  return roots;
}

absl::Status ImportRoots::Refuse(const std::string& path, const absl::Status& why) const {
  // These errors are about this process or its disk, and arise only where reading was allowed.
  if (tells_why_ || absl::IsResourceExhausted(why) || absl::IsDataLoss(why)) return why;
  if (folders_.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "open ", path,
        ": this daemon imports no files by path; set daemon.import_roots to the folders of the models"));
  }
  LOG_EVERY_N_SEC(INFO, 1) << "import " << QuoteName(path) << ": refused: " << why;
  if (absl::IsUnavailable(why)) {
    return absl::UnavailableError(absl::StrCat("open ", path,
                                               ": the daemon cannot open the path at the moment; try again "
                                               "later, or see the daemon's log for the reason"));
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "open ", path, ": the file does not exist, may not be read, or is outside of daemon.import_roots (",
      absl::StrJoin(folders_, ", "), "); see the daemon's log for the reason"));
}

absl::StatusOr<std::string> ImportRoots::Resolve(const std::string& path) const {
  if (path.empty() || path.size() >= PATH_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("open a path of ", path.size(),
                                                   " bytes: a path must have 1 to ", PATH_MAX - 1,
                                                   " bytes; give another path"));
  }
  if (const size_t nul = path.find('\0'); nul != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("open a path of ", path.size(), " bytes: byte ", nul,
                                                   " is NUL; give a path without NUL bytes"));
  }
  if (!tells_why_ && path.front() != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "open \"", path, "\": the path is not absolute; give the absolute path on the daemon's host"));
  }
  absl::StatusOr<std::string> real = RealPath(path);
  if (!real.ok()) {
    if (tells_why_) return real.status();
    // Nothing says yet that the path may be read, so its errors become two kinds: that the file system is
    // away, and that the path may not be opened. Which error it was would tell a client of files outside the
    // roots.
    const bool passing = absl::IsUnavailable(real.status()) || absl::IsResourceExhausted(real.status()) ||
                         absl::IsDataLoss(real.status());
    return Refuse(path, passing ? absl::UnavailableError(real.status().message())
                                : absl::PermissionDeniedError(real.status().message()));
  }
  if (!LiesInOne(*real, folders_)) {
    return Refuse(path, absl::PermissionDeniedError(
                            absl::StrCat("open ", *real,
                                         ": the path is outside of daemon.import_roots; move the file, or "
                                         "add its folder to daemon.import_roots")));
  }
  return real;
}

absl::StatusOr<std::shared_ptr<ObjectReader>> ImportRoots::OpenRegular(const std::string& path,
                                                                       const std::string& real,
                                                                       int entry) const {
  struct stat info;
  if (fstat(entry, &info) != 0) return Refuse(path, FileError(errno, "stat", path));
  if (S_ISLNK(info.st_mode)) {
    return Refuse(
        path,
        absl::PermissionDeniedError(absl::StrCat(
            "open ", real, ": the path became a symbolic link while the daemon opened the path; try again")));
  }
  if (!S_ISREG(info.st_mode)) {
    const absl::Status other = absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": the path is not a regular file; name a file"));
    // A client learns that the path leads to a folder or a device only where it may be read.
    return MayRead(entry) ? other : Refuse(path, other);
  }
  // An O_PATH descriptor cannot be read from, so the file behind it is opened by way of /proc.
  UniqueFd fd(open(Behind(entry).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Refuse(path, FileError(errno, "open", path));
  absl::StatusOr<std::shared_ptr<FileReader>> file = FileReader::Of(real, std::move(fd));
  if (!file.ok()) return Refuse(path, file.status());
  return file;
}

// Adds the paths of files below the open folder, each behind `prefix`. A folder is not entered through a
// link, so that a link to a folder above ends nothing. What is not a file, nor a link to one, is left out.
// `nesting`: how many folders more may lie in each other.
absl::Status AddFilesBelow(UniqueFd folder, const std::string& prefix, size_t max, int nesting,
                           std::vector<std::string>& paths) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(fdopendir(folder.get()), &closedir);
  const std::string subject = prefix.empty() ? "the files" : prefix;
  if (opened == nullptr) return FileError(errno, "list", subject);
  folder.release();  // closed with `opened`
  // readdir tells an error from the end by errno alone, which the calls below may have set.
  const auto next = [&] {
    errno = 0;
    return readdir(opened.get());
  };
  while (const dirent* one = next()) {
    const std::string name = one->d_name;
    if (IsHiddenPath(name)) continue;
    struct stat info{};
    const int entry = dirfd(opened.get());
    if (fstatat(entry, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;  // it went meanwhile
    const bool is_link = S_ISLNK(info.st_mode);
    if (is_link && fstatat(entry, name.c_str(), &info, 0) != 0) continue;
    if (S_ISREG(info.st_mode)) paths.push_back(absl::StrCat(prefix, name));
    // One too many is enough for the caller to see that there are too many.
    if (paths.size() > max) return absl::OkStatus();
    if (!is_link && S_ISDIR(info.st_mode)) {
      if (nesting == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("list ", QuoteName(absl::StrCat(prefix, name)), ": more than ", kMaxNesting,
                         " folders are nested; move files that do not belong to the model elsewhere, or put "
                         "the model with --no-files"));
      }
      UniqueFd below(openat(entry, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below) return FileError(errno, "list", absl::StrCat(prefix, name));
      TC_RETURN_IF_ERROR(
          AddFilesBelow(std::move(below), absl::StrCat(prefix, name, "/"), max, nesting - 1, paths));
    }
  }
  return errno == 0 ? absl::OkStatus() : FileError(errno, "list", subject);
}

// Opens files in a folder and keeps to it, also where links lead out of it.
class ImportRoots::Folder final : public ObjectFolder {
 public:
  // `path` as it was given, for messages; `real` as the roots found it.
  Folder(ImportRoots roots, std::string path, std::string real)
      : roots_(std::move(roots)), path_(std::move(path)), folders_{std::move(real)} {
    // The layout of a model hub's download cache: what lies in a snapshot are links to files in blobs.
    const std::string_view snapshots = ParentOf(folders_[0]);
    if (absl::EndsWith(snapshots, "/snapshots")) {
      folders_.push_back(absl::StrCat(ParentOf(snapshots), "/blobs"));
    }
  }

  absl::StatusOr<std::vector<std::string>> List(const RequestContext& /*context*/) const override {
    return roots_.List(folders_[0]);
  }
  absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& /*context*/,
                                                     size_t max) const override {
    return roots_.ListBelow(folders_[0], max);
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                     const std::string& name) const override {
    return roots_.OpenFile(context, absl::StrCat(path_, "/", name), folders_);
  }

 private:
  const ImportRoots roots_;
  const std::string path_;
  std::vector<std::string> folders_;  // where its files may lie, without links; the first is the folder
};

absl::StatusOr<FoundObject> ImportRoots::Find(const RequestContext& context, const std::string& path) const {
  TC_ASSIGN_OR_RETURN(const std::string real, Resolve(path));
  // Resolving and opening are two steps, between which a link can be swapped. Walk opens each component
  // without following links, so that it opens what was allowed or nothing.
  absl::StatusOr<UniqueFd> entry = Walk(real);
  if (!entry.ok()) return Refuse(path, entry.status());
  FoundObject found;
  struct stat info;
  // Where fstat fails, OpenRegular fails, too, and says so.
  if (fstat(entry->get(), &info) == 0 && S_ISDIR(info.st_mode)) {
    found.folder = std::make_shared<Folder>(*this, path, real);
    return found;
  }
  TC_ASSIGN_OR_RETURN(found.object, OpenRegular(path, real, entry->get()));
  TC_RETURN_IF_ERROR(WriteOutMappedPages(context, *found.object));
  return found;
}

absl::StatusOr<std::shared_ptr<ObjectReader>> ImportRoots::OpenFile(
    const RequestContext& context, const std::string& path, std::span<const std::string> folders) const {
  // Each file of a folder is resolved on its own, since it may be a link. Only then is its real path compared
  // with the folder.
  TC_ASSIGN_OR_RETURN(const std::string real, Resolve(path));
  if (!LiesInOne(real, folders)) {
    return Refuse(path, absl::InvalidArgumentError(absl::StrCat(
                            "open ", path, ": the path leads to ", real, ", which is outside of ",
                            absl::StrJoin(folders, " and "), "; replace the link with the file itself")));
  }
  absl::StatusOr<UniqueFd> entry = Walk(real);
  if (!entry.ok()) return Refuse(path, entry.status());
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> file, OpenRegular(path, real, entry->get()));
  TC_RETURN_IF_ERROR(WriteOutMappedPages(context, *file));
  return file;
}

absl::StatusOr<std::vector<std::string>> ImportRoots::List(const std::string& folder) const {
  const absl::StatusOr<UniqueFd> entry = Walk(folder);
  if (!entry.ok()) return Refuse(folder, entry.status());
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(Behind(entry->get()).c_str()), &closedir);
  if (opened == nullptr) return Refuse(folder, FileError(errno, "list", folder));
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* one = readdir(opened.get())) names.emplace_back(one->d_name);
  if (errno != 0) return Refuse(folder, FileError(errno, "list", folder));
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::ranges::sort(names);
  return names;
}

absl::StatusOr<std::vector<std::string>> ImportRoots::ListBelow(const std::string& folder, size_t max) const {
  const absl::StatusOr<UniqueFd> entry = Walk(folder);
  if (!entry.ok()) return Refuse(folder, entry.status());
  UniqueFd opened(open(Behind(entry->get()).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return Refuse(folder, FileError(errno, "list", folder));
  std::vector<std::string> paths;
  const absl::Status listed = AddFilesBelow(std::move(opened), "", max, kMaxNesting, paths);
  const absl::Status named = Annotate(listed, absl::StrCat("open folder ", folder));
  // What lies too deep was found by listing, which the client may do, so it may learn of it.
  if (absl::IsInvalidArgument(named)) return named;
  if (!named.ok()) return Refuse(folder, named);
  std::ranges::sort(paths);
  return paths;
}

absl::StatusOr<std::shared_ptr<ObjectReader>> ImportRoots::OpenAgain(const RequestContext& /*context*/,
                                                                     const ObjectIdentity& file) const {
  // The URI is a real path, so nothing is resolved: a link that came to stand there since is an error.
  const std::string& path = file.uri;
  if (!absl::StartsWith(path, "/") || !LiesInOne(path, folders_)) {
    return Refuse(path, absl::PermissionDeniedError(
                            absl::StrCat("open ", path,
                                         ": the path is outside of daemon.import_roots; move the file, or "
                                         "add its folder to daemon.import_roots")));
  }
  absl::StatusOr<UniqueFd> entry = Walk(path);
  if (!entry.ok()) return Refuse(path, entry.status());
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> opened, OpenRegular(path, path, entry->get()));
  if (opened->identity() != file) {
    return absl::FailedPreconditionError(
        absl::StrCat("open ", path, ": the file changed or was replaced after its import: ",
                     DescribeChange(file, opened->identity()), "; import the model again"));
  }
  return opened;
}

}  // namespace tensorcast
