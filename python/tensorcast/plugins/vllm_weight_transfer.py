"""vLLM: new weights for a running engine, `--weight-transfer-config '{"backend": "tensorcast"}'`.

    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    from tensorcast.plugins.vllm_weight_transfer import TensorcastTrainerInitInfo

    trainer = WeightTransferTrainerFactory.trainer_init(
        TensorcastTrainerInitInfo(key="policy", rank=0), client=HTTPVLLMWeightSyncClient(url), source=ModuleSource(module))
    trainer.send_weights()                       # after each step

The trainer puts each version under a key and tells the engines its artifact id. Each rank of an engine reads the version from
the daemon of its own host, where all ranks share one replica. Written against vLLM 0.33 (python/interfaces/vllm.json).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

from tensorcast import default_store
from tensorcast.plugins import vllm, vllm_loader
from tensorcast.plugins.vllm_patches import Patches, patchable

if TYPE_CHECKING:
    from tensorcast.store import Put
    from tensorcast.weights import Weights

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class TensorcastInitInfo(WeightTransferInitInfo):
    """The first message of the trainer to the engines."""

    timeout_s: float | None = None  # for the get of one version


@dataclasses.dataclass
class TensorcastUpdateInfo(WeightTransferUpdateInfo):
    """The message of the trainer to the engines about a version."""

    artifact_id: str
    key: str
    revision: int


class TensorcastWeightTransferEngine(WeightTransferEngine):
    """Receives the versions in a worker of vLLM.

    An update is one call. It first gets the version, which the daemon has verified, and then writes to the model. After a
    failed update, repeat the update to finish it.
    """

    init_info_cls = TensorcastInitInfo
    update_info_cls = TensorcastUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._timeout_s: float | None = None
        self._patches = Patches(model, device, patchable(self.model_config, device))
        if loaded := vllm_loader.loaded_version.get(model):
            self._patches.holds(loaded)

    def init_transfer_engine(self, init_info: TensorcastInitInfo) -> None:
        self._timeout_s = init_info.timeout_s
        default_store.connect()  # so a missing daemon is an error before the first update

    def start_weight_update(self) -> None:
        """Does nothing: receive_weights decides whether vLLM reloads its layers."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: TensorcastUpdateInfo) -> None:
        begun = time.perf_counter()
        store = default_store.connect()
        with store.get(update_info.artifact_id, timeout=self._timeout_s, progress=False) as weights:
            how = self._patches.update(store, weights, lambda: self._load(weights), self._timeout_s)
            if self.device.type != "cpu":
                torch.accelerator.synchronize()
        _log.info("%s, revision %d, %s: %s, in %.3f s", update_info.key, update_info.revision, update_info.artifact_id, how,
                  time.perf_counter() - begun)

    def finish_weight_update(self) -> None:
        """Does nothing: the update has ended."""

    def shutdown(self) -> None:
        """Does nothing: the whole process shares the connection to the daemon."""

    def _load(self, weights: Weights) -> None:
        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                self.model.load_weights(vllm_loader.checkpoint_of(self.model, weights))
        finally:  # otherwise, after a failed load, the next load would count the layer's earlier weights
            finalize_layerwise_reload(self.model, self.model_config)


@dataclasses.dataclass
class TensorcastTrainerInitInfo(TrainerInitInfo):
    """The options of the trainer's side.

    key: the key of the versions. rank: this process's rank in the trainer; rank 0 puts the weights.
    keep: the number of versions that the key keeps, as in Store.put.
    daemon: the address of the store daemon; the default is this host's daemon.
    timeout_s: max seconds for a put in the trainer, and for a get in an engine. By default without limit.
    """

    backend: ClassVar[str] = vllm.WEIGHT_TRANSFER_BACKEND

    key: str
    keep: int | None = None
    daemon: str | None = None
    timeout_s: float | None = None


class TensorcastTrainerWeightTransferEngine(TrainerWeightTransferEngine):
    """Sends the versions. All ranks of the trainer call each method. The source gathers the tensors, and rank 0 puts
    them.
    """

    init_info_cls = TensorcastTrainerInitInfo

    def __init__(self, *, init_info: TensorcastTrainerInitInfo, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.rank = init_info.rank  # the base class takes it since 0.33
        self._options = init_info
        self._published = False  # publish() put a version that was not sent yet
        self.put: Put | None = None  # the last put: artifact id, revision, difference; in rank 0

    @classmethod
    def trainer_init(cls, init_info: TensorcastTrainerInitInfo, *, client: Any, source: Any = None) -> TensorcastTrainerWeightTransferEngine:
        """Makes this process's side. Raises ValueError if rank 0 does not get all tensors of the source."""
        if source is None or not source.implements_iter_full():
            raise ValueError("the weight transfer of tensorcast puts full tensors; pass a source with iter_full(), such as ModuleSource")
        if missing := {meta.name for meta in source.metadata} - set(source.owned_names(0)):
            raise ValueError(f"the weight transfer of tensorcast puts all tensors in rank 0, which does not own {sorted(missing)[:3]}; "
                             "pass a source that gathers all tensors in rank 0")
        made = cls(init_info=init_info, client=client, source=source)
        if made.is_sender:
            client.init_weight_transfer_engine(dataclasses.asdict(TensorcastInitInfo(init_info.timeout_s)))
        return made

    def publish(self) -> None:
        """Puts the present weights while the engines still generate. The next send_weights() sends this version."""
        tensors = {}
        for name, tensor in self.source.iter_full():  # also in other ranks, since it gathers
            if self.is_sender:
                tensors[name] = tensor.detach().cpu()  # moves each gathered tensor off the GPU before the next one
        if self.is_sender:
            options = self._options
            self.put = default_store.connect(options.daemon).put(
                tensors, key=options.key, keep=options.keep, base="auto", timeout=options.timeout_s, progress=False)
        self._published = True

    def send_weights(self) -> None:
        """Publishes the weights, unless publish() has done so, and returns when all engines have them."""
        if not self._published:
            self.publish()
        self._published = False  # a later call sends the weights of that time
        if self.put is None:
            return  # not rank 0
        version = TensorcastUpdateInfo(self.put.artifact_id, self._options.key, self.put.key_revision)
        self.client.start_weight_update()
        try:
            self.client.update_weights(dataclasses.asdict(version))
        except BaseException:
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()  # workers that did not fail wait for this
            raise
        self.client.finish_weight_update(version.artifact_id)


vllm.register_weight_transfer()  # in a trainer no other code loads vLLM's plug-ins
