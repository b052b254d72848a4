#include "core/disk/artifact_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "core/disk/disk_metrics.h"
#include "core/disk/file_io.h"
#include "core/disk/file_reader.h"
#include "core/disk/packed_format.h"
#include "core/disk/packed_writer.h"
#include "otel/api/trace_macros.h"

namespace tensorcast {
namespace {

bool IsRemoved(const std::string& path) {
  struct stat named{};
  return stat(path.c_str(), &named) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

// A file that was removed can still be read by its descriptor, and is gone with that descriptor.
absl::Status CheckIsInItsPlace(const PackedFile& file) {
  struct stat open{};
  struct stat named{};
  if (fstat(file.fd(), &open) != 0 || stat(file.path().c_str(), &named) != 0) {
    const int error = errno;
    // A folder that does not answer says nothing of the file.
    if (error != ENOENT && error != ENOTDIR) {
      return absl::UnavailableError(ErrnoStatus(error, "look for the packed file", file.path()).message());
    }
  } else if (open.st_dev == named.st_dev && open.st_ino == named.st_ino) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "read ", file.path(),
      ": another process removed or replaced the packed file, so the node lost this copy; put the artifact "
      "again"));
}

absl::StatusOr<UniqueFd> OpenForReading(const std::string& path) {
  // O_NONBLOCK: a FIFO in the file's place must not block.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ErrnoStatus(errno, "open", path);
  return fd;
}

// Header and manifest, checked against each other and against the id in the file's name. The image is
// verified chunk by chunk when it is read.
absl::StatusOr<std::shared_ptr<PackedFile>> OpenPackedFile(const std::string& path,
                                                           std::string_view artifact_id) {
  TC_ASSIGN_OR_RETURN(UniqueFd fd, OpenForReading(path));
  // The reader borrows the descriptor and goes at the end of this function.
  TC_ASSIGN_OR_RETURN(const auto file, FileReader::Borrow(path, fd.get(), /*keep_alive=*/nullptr));
  const uint64_t file_bytes = file->identity().bytes;
  TC_ASSIGN_OR_RETURN(const std::string bytes,
                      ReadBytes({}, *file, 0, std::min(kPackedHeaderBytes, file_bytes)));
  const absl::StatusOr<PackedHeader> decoded =
      DecodePackedHeader(std::as_bytes(std::span(bytes)), file_bytes);
  if (!decoded.ok()) return Annotate(decoded.status(), absl::StrCat("open ", path));
  const PackedHeader& header = *decoded;
  // The header was checked against the file's length, so this takes no more memory than the file has bytes.
  TC_ASSIGN_OR_RETURN(const std::string manifest_bytes,
                      ReadBytes({}, *file, header.manifest_offset, header.manifest_bytes));
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(manifest_bytes);
  if (!manifest.ok()) {
    // In parentheses, since the decoder's error has a remedy of its own.
    return absl::InvalidArgumentError(absl::StrCat("open ", path, ": the file's manifest cannot be decoded (",
                                                   manifest.status().message(), "); put the artifact again"));
  }
  if ((*manifest)->id() != artifact_id) {
    return absl::InvalidArgumentError(absl::StrCat("open ", path, ": the file holds ", (*manifest)->id(),
                                                   " and not ", artifact_id, "; put the artifact again"));
  }
  if ((*manifest)->layout().image_bytes != header.image_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": the image has ", header.image_bytes, " bytes in the header, but ",
                     (*manifest)->layout().image_bytes, " bytes in the manifest; put the artifact again"));
  }
  return std::make_shared<PackedFile>(path, std::move(fd), header.image_offset, *std::move(manifest));
}

// The folder as a list of its files. The mutex guards the two maps. A file's name and its entry change
// together, so rename and unlink run under the mutex, too; reading, checking, closing and syncing files do
// not, since a disk may take long to answer.
//
// Its writers share it, and may outlive its owner.
class Folder final : public ArtifactStore, public std::enable_shared_from_this<Folder> {
 public:
  Folder(std::string directory, UniqueFd fd) : directory_(std::move(directory)), fd_(std::move(fd)) {}

  void Scan() {
    const DiskOperation scan("scan");
    std::error_code error;
    // A damaged file is kept and reported. The scan goes on: one bad file must not hide the others.
    std::filesystem::directory_iterator entry(directory_, error);
    // Not by a range: the operator ++ throws where the disk fails in the middle.
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
      const std::filesystem::path& path = entry->path();
      const std::string artifact_id = ArtifactIdOfFileName(path.filename().string());
      if (artifact_id.empty()) continue;
      auto file = OpenPackedFile(path.string(), artifact_id);
      if (file.ok()) {
        Add(*std::move(file));
      } else {
        otel::metrics::kDiskErrors.Add(1, {"scan"});
        LOG(WARNING) << "scan the disk tier: a packed file stays on disk, but is not used: " << file.status();
        NoteDamaged(artifact_id, file.status());
      }
    }
    scan.End(!error);
    LOG_IF(ERROR, error)
        << "scan the disk tier: read folder " << directory_ << ": " << error.message()
        << "; packed files that were not found yet are not used; check the disk, and start the daemon again";
  }

  std::vector<std::shared_ptr<PackedFile>> List() const override {
    std::vector<std::shared_ptr<PackedFile>> files;
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, file] : files_) files.push_back(file);
    return files;
  }

  // A file can be removed behind this process's back, so each request looks whether the name still leads to
  // the open file.
  absl::StatusOr<std::shared_ptr<PackedFile>> Find(std::string_view artifact_id) const override {
    // Checked without the lock, which must not be held while a disk does not answer.
    std::shared_ptr<PackedFile> file = Listed(artifact_id);
    while (file != nullptr) {
      const absl::Status checked = CheckIsInItsPlace(*file);
      if (checked.ok()) return file;
      std::shared_ptr<PackedFile> now = Listed(artifact_id);
      if (now == file) return checked;
      file = std::move(now);  // written anew meanwhile
    }
    return absl::NotFoundError(absl::StrCat("find ", artifact_id,
                                            ": no usable packed file of the artifact is in ", directory_,
                                            "; get the artifact from another source"));
  }

  absl::StatusOr<std::unique_ptr<PackedWriter>> Create(const ImageLayout& layout,
                                                       uint64_t manifest_bytes_max) override;

  absl::Status Remove(std::string_view artifact_id) override {
    const DiskOperation remove("remove");
    absl::Status removed = Drop(artifact_id);
    // A removal of what is not there says nothing of the disk: no metric.
    if (!absl::IsNotFound(removed)) remove.End(removed.ok());
    return removed;
  }

  void CloseLost(std::string_view artifact_id) override {
    const std::shared_ptr<PackedFile> lost = Listed(artifact_id);  // closed after the lock is released
    if (lost == nullptr || !absl::IsFailedPrecondition(CheckIsInItsPlace(*lost))) return;
    absl::MutexLock lock(&mutex_);
    const auto it = files_.find(artifact_id);
    // Only the file that was checked: it may have been written anew in between.
    if (it != files_.end() && it->second == lost) files_.erase(it);
  }

  void ForgetRemovedDamage() override {
    for (const DamagedFile& file : Damaged()) {
      if (!IsRemoved(file.path)) continue;
      {
        absl::MutexLock lock(&mutex_);
        const auto it = damaged_.find(file.artifact_id);
        // Unless it was written anew, or found damaged again, since the list was made.
        if (it != damaged_.end() && it->second == file.error) damaged_.erase(it);
      }
      CloseLost(file.artifact_id);
    }
  }

  DiskUsage Usage() const override {
    DiskUsage usage;
    struct statvfs disk;
    if (fstatvfs(fd_.get(), &disk) == 0) usage.free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, file] : files_) {
      // Header, manifest and image, as the layout has them: the blocks are not asked for.
      usage.used_bytes += file->image_offset() + file->manifest()->layout().image_bytes;
    }
    return usage;
  }

  std::vector<DamagedFile> Damaged() const override {
    std::vector<DamagedFile> damaged;
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, error] : damaged_) {
      damaged.push_back({.path = PathOf(id), .artifact_id = id, .error = error});
    }
    return damaged;
  }

  void NoteDamaged(std::string_view artifact_id, const absl::Status& error) override {
    absl::MutexLock lock(&mutex_);
    damaged_[std::string(artifact_id)] = error;
  }

  // Gives a finished file its name and lists it.
  absl::StatusOr<std::shared_ptr<PackedFile>> Adopt(PartialFile& partial,
                                                    const std::shared_ptr<const Manifest>& manifest) {
    const std::string path = PathOf(manifest->id());
    std::shared_ptr<PackedFile> file;
    // Closed without the lock, since that may wait for the disk.
    std::shared_ptr<PackedFile> replaced;
    {
      absl::MutexLock lock(
          &mutex_);  // so that a Remove at the same time sees both the name and the entry, or neither
      // Opened anew, for reading only: the partial file's descriptor can write and goes with the writer.
      // Before it is renamed: a file that has its name but cannot be opened would stay, and not be listed.
      TC_ASSIGN_OR_RETURN(UniqueFd fd, OpenForReading(partial.path()));
      TC_RETURN_IF_ERROR(partial.Rename(path));
      file = std::make_shared<PackedFile>(path, std::move(fd), partial.image_offset(), manifest);
      replaced = std::exchange(files_[manifest->id()], file);
      // The new file is whole, and stands where the damaged one was.
      damaged_.erase(manifest->id());
    }
    TC_RETURN_IF_ERROR(Sync());
    // Last: the caller counts the file as a copy that a crash does not take.
    return file;
  }

 private:
  std::string PathOf(std::string_view artifact_id) const {
    return absl::StrCat(directory_, "/", PackedFileName(artifact_id));
  }

  // A damaged file keeps its entry, for Usage and Remove, but is not given to readers.
  std::shared_ptr<PackedFile> Listed(std::string_view artifact_id) const {
    absl::MutexLock lock(&mutex_);
    const auto it = files_.find(artifact_id);
    return it == files_.end() || damaged_.contains(artifact_id) ? nullptr : it->second;
  }

  absl::Status Drop(std::string_view artifact_id) {
    const std::string path = PathOf(artifact_id);
    std::shared_ptr<PackedFile> removed;  // closed after the lock is released
    {
      absl::MutexLock lock(&mutex_);
      const auto it = files_.find(artifact_id);
      const auto damaged = damaged_.find(artifact_id);
      const bool known = it != files_.end() || damaged != damaged_.end();
      // Under the lock, as in Adopt: name and entry go together.
      const int error = known && unlink(path.c_str()) != 0 ? errno : 0;
      // A folder under such a name was found damaged, and is not the store's to remove.
      if (!known || (it == files_.end() && error == EISDIR)) {
        return absl::NotFoundError(absl::StrCat("remove ", artifact_id,
                                                ": no packed file of the artifact is in ", directory_,
                                                "; check the artifact id"));
      }
      // A file that another process removed is gone as well.
      if (error != 0 && error != ENOENT) return ErrnoStatus(error, "remove", path);
      if (it != files_.end()) {
        removed = std::move(it->second);
        files_.erase(it);
      }
      if (damaged != damaged_.end()) damaged_.erase(damaged);
    }
    return Sync();
  }

  void Add(std::shared_ptr<PackedFile> file) {
    absl::MutexLock lock(&mutex_);
    files_.insert_or_assign(file->manifest()->id(), std::move(file));
  }

  // Names are on the disk only after the folder is synced.
  absl::Status Sync() const {
    return fsync(fd_.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "sync the folder", directory_);
  }

  const std::string directory_;
  const UniqueFd fd_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<PackedFile>, std::less<>> files_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status, std::less<>> damaged_ ABSL_GUARDED_BY(mutex_);  // by artifact id
};

class PackedWriterImpl final : public PackedWriter {
 public:
  PackedWriterImpl(std::shared_ptr<Folder> folder, std::unique_ptr<PartialFile> partial, uint64_t image_bytes)
      : folder_(std::move(folder)), partial_(std::move(partial)), image_bytes_(image_bytes) {}
  ~PackedWriterImpl() override {
    // A writer that was given up for another reason neither took its time nor failed: no metric.
    if (committed_ || failed_) pack_.End(committed_);
    otel::metrics::kDiskWrittenBytes.Add(partial_->written_bytes(), {"packed"});
  }

  absl::Status Write(uint64_t image_offset, std::span<const ConstHostSpan> bytes) override {
    return Note(partial_->WriteImage(image_offset, bytes));
  }

  absl::StatusOr<std::shared_ptr<PackedFile>> Commit(std::shared_ptr<const Manifest> manifest) override {
    if (manifest->layout().image_bytes != image_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pack ", manifest->id(), ": the manifest describes an image of ", manifest->layout().image_bytes,
          " bytes, but the file holds an image of ", image_bytes_, " bytes; put the artifact again"));
    }
    // The file is whole and synced before it gets its name, and the folder is synced after that. A crash in
    // between leaves a partial file, which the next Open removes, or a whole packed file.
    SC_TRACE_SCOPE("Disk/Commit");  // syncing may take as long as all the writes
    const absl::Status finished = Note(partial_->Finish(manifest->bytes()));
    SC_TRACE_ERROR(finished);
    TC_RETURN_IF_ERROR(finished);
    absl::StatusOr<std::shared_ptr<PackedFile>> file = folder_->Adopt(*partial_, manifest);
    committed_ = Note(file.status()).ok();
    SC_TRACE_ERROR(file.status());
    return file;
  }

 private:
  absl::Status Note(absl::Status status) {
    if (!status.ok()) failed_ = true;
    return status;
  }

  const std::shared_ptr<Folder> folder_;
  const std::unique_ptr<PartialFile> partial_;
  const uint64_t image_bytes_;
  const DiskOperation pack_{"pack"};
  std::atomic<bool> failed_ = false;
  bool committed_ = false;
};

absl::StatusOr<std::unique_ptr<PackedWriter>> Folder::Create(const ImageLayout& layout,
                                                             uint64_t manifest_bytes_max) {
  absl::StatusOr<std::unique_ptr<PartialFile>> partial =
      PartialFile::Create(directory_, layout.image_bytes, manifest_bytes_max);
  if (!partial.ok()) {
    otel::metrics::kDiskErrors.Add(1, {"pack"});
    return partial.status();
  }
  return std::make_unique<PackedWriterImpl>(shared_from_this(), *std::move(partial), layout.image_bytes);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ArtifactStore>> ArtifactStore::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), "create the folder of the disk tier", directory);
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "open the folder of the disk tier", directory);
  // Two stores in one folder would each offer, and count as copies, files that the other removes.
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK ? ErrnoStatus(errno, "lock the folder of the disk tier", directory)
                                : absl::FailedPreconditionError(absl::StrCat(
                                      "open the disk tier: another daemon keeps its packed files in ",
                                      directory, "; set daemon.disk_dir to another folder"));
  }
  // Under the folder's lock, and before the first writer of this process.
  RemoveAbandonedPartials(directory);
  auto folder = std::make_shared<Folder>(directory, std::move(fd));
  folder->Scan();
  return folder;
}

}  // namespace tensorcast
