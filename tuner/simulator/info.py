"""What the server says of itself: its configuration, its memory, its load."""

from __future__ import annotations

import time
from typing import Any

from tuner.simulator.arguments import as_dict
from tuner.simulator.engine import Engine
from tuner.simulator.machine import VERSION, Machine
from tuner.simulator.memory import graph_batch_sizes
from tuner.simulator.protocol import Limits

_GIB = 1024**3
_STALE_THROUGHPUT_S = 30.0  # after that long without a decode line the gauge reads 0


class Info:
    """Answers from one machine and its engine.

    Args:
        startup_s: how long the start took.
    """

    def __init__(self, machine: Machine, engine: Engine, startup_s: float) -> None:
        self._machine = machine
        self._engine = engine
        self._startup_s = startup_s
        self.model = machine.args.served_model_name or machine.args.model_path

    @property
    def limits(self) -> Limits:
        """What one request may hold."""
        context = self._machine.args.context_length or self._machine.profile.model.context_length
        return Limits(context_length=context, max_input_tokens=min(context, self._engine.plan.max_total_num_tokens) - 6)

    def models(self) -> dict[str, Any]:
        """Return the body of /v1/models."""
        card = {
            "id": self.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self._machine.args.model_path,
            "parent": None,
            "max_model_len": self.limits.context_length,
        }
        return {"object": "list", "data": [card]}

    def model_info(self) -> dict[str, Any]:
        """Return the body of /model_info."""
        args = self._machine.args
        return {
            "model_path": args.model_path,
            "tokenizer_path": args.tokenizer_path or args.model_path,
            "served_model_name": self.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": self._machine.profile.model.multimodal,
            "has_audio_understanding": False,
            "model_type": None,
            "architectures": [self._machine.profile.model.architecture],
        }

    def server_info(self) -> dict[str, Any]:
        """Return the body of /server_info; API keys are in clear, as the real one's."""
        return {
            **as_dict(self._machine.args),
            "launch_command": " ".join(("sglang", "serve", *self._machine.argv)),
            "status": "ready",
            "max_total_num_tokens": self._engine.plan.max_total_num_tokens,
            "max_req_input_len": self.limits.max_input_tokens,
            "startup_time": self._startup_s,
            "internal_states": [self._internal_state()],
            "version": VERSION,
            "kv_events": None,
        }

    def loads(self) -> dict[str, Any]:
        """Return the body of /v1/loads."""
        scheduler, plan = self._engine.scheduler, self._engine.plan
        used = scheduler.used_tokens
        load: dict[str, Any] = {
            "dp_rank": 0,
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_total_reqs": len(scheduler.pending),
            "num_used_tokens": used,
            "max_total_num_tokens": plan.max_total_num_tokens,
            "token_usage": used / plan.max_total_num_tokens,
            "gen_throughput": self._throughput(),
            "max_running_requests": plan.max_running_requests,
            "memory": self._memory(),
            "queues": {"waiting": len(scheduler.waiting), "retracted": self._retracted()},
        }
        if scheduler.readings.accept_length is not None:
            load["speculative"] = {
                "accept_length": scheduler.readings.accept_length,
                "accept_rate": scheduler.readings.accept_rate,
            }
        return {"timestamp": time.time(), "version": VERSION, "dp_rank_count": 1, "loads": [load]}

    def gauges(self) -> dict[str, float]:
        """Return the gauges of /metrics; what was not measured yet is absent."""
        scheduler, plan = self._engine.scheduler, self._engine.plan
        used = scheduler.used_tokens
        gauges = {
            "num_running_reqs": len(scheduler.running),
            "num_queue_reqs": len(scheduler.waiting),
            "num_used_tokens": used,
            "kv_available_tokens": plan.max_total_num_tokens - used,
            "token_usage": used / plan.max_total_num_tokens,
            "gen_throughput": self._throughput(),
            "num_retracted_reqs": self._retracted(),
            "max_total_num_tokens": plan.max_total_num_tokens,
            "weight_memory_usage_gb": (plan.weights_bytes + plan.draft_bytes) / _GIB,
            "kv_cache_memory_usage_gb": plan.kv_bytes / _GIB,
            "graph_memory_usage_gb": (plan.graphs_bytes + plan.draft_graphs_bytes) / _GIB,
            "startup_available_gpu_memory_gb": plan.available_after_bytes / _GIB,
            "startup_time_seconds": self._startup_s,
        }
        if self._machine.profile.hybrid:
            gauges["full_token_usage"] = used / plan.max_total_num_tokens
            gauges["mamba_usage"] = len(scheduler.running) / plan.max_running_requests
        if self._machine.args.speculative:
            gauges["spec_num_steps"] = self._machine.args.steps
            gauges["spec_num_draft_tokens"] = self._machine.args.draft_tokens
        if scheduler.readings.accept_length is not None and scheduler.readings.accept_rate is not None:
            gauges["spec_accept_length"] = scheduler.readings.accept_length
            gauges["spec_accept_rate"] = scheduler.readings.accept_rate
        return gauges

    def totals(self) -> dict[str, float]:
        """Return the counters of /metrics that the scheduler keeps."""
        scheduler = self._engine.scheduler
        return {
            "num_retracted_requests_total": scheduler.retractions,
            "realtime_tokens_total": scheduler.decoded_tokens,
        }

    def _retracted(self) -> int:
        """Requests that wait although they have generated already."""
        return sum(1 for request in self._engine.scheduler.waiting if request.generated)

    def _internal_state(self) -> dict[str, Any]:
        args, plan, scheduler = self._machine.args, self._engine.plan, self._engine.scheduler
        state = {
            **as_dict(args),
            "world_size": args.tp_size * args.pp_size,
            "startup_time": self._startup_s,
            "effective_max_running_requests_per_dp": plan.max_running_requests,
            "last_gen_throughput": scheduler.readings.throughput,
            "memory_usage": self._memory(),
            "decode_cuda_graph_bs": list(graph_batch_sizes(args, plan.max_running_requests)),
            "decode_cuda_graph_memory_gb": _gb(plan.graphs_bytes),
        }
        if scheduler.readings.accept_length is not None:
            state["avg_spec_accept_length"] = scheduler.readings.accept_length
        return state

    def _memory(self) -> dict[str, Any]:
        plan, args = self._engine.plan, self._machine.args
        graph = {"target_verify" if args.speculative else "decode": _gb(plan.graphs_bytes)}
        if args.speculative:
            graph |= {
                "draft_decode": _gb(plan.draft_graphs_bytes / 2),
                "draft_extend": _gb(plan.draft_graphs_bytes / 2),
            }
        return {
            "weight": _gb(plan.weights_bytes + plan.draft_bytes),
            "kvcache": _gb(plan.kv_bytes),
            "startup_available": _gb(plan.available_after_bytes),
            "token_capacity": plan.max_total_num_tokens,
            "token_capacity_swa": None,
            "graph": graph,
        }

    def _throughput(self) -> float:
        readings = self._engine.scheduler.readings
        at_s = readings.throughput_at_s
        if at_s is None or self._engine.now_s() - at_s > _STALE_THROUGHPUT_S:
            return 0.0
        return readings.throughput


def _gb(count: float) -> float:
    return round(count / _GIB, 2)
