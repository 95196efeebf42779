# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention's models without a GPU. Its Triton kernels run in Triton's interpreter,
which takes a second for a few tokens. torch_ops() replaces them by torch: fla's own naive ops for
the recurrences, and the few lines below for norms, convolutions and rotary embeddings.

Import this module before fla and triton."""
import contextlib
import os
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import fla.layers.attn  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from fla.layers import (delta_net, gated_deltanet, gla, hgrn, hgrn2, kda, linear_attn,  # noqa: E402
                        multiscale_retention, rwkv7)
from fla.models.rwkv7 import modeling_rwkv7  # noqa: E402
from fla.modules import (FusedRMSNormGated, GroupNorm, LayerNorm, RMSNorm, RotaryEmbedding,  # noqa: E402
                         ShortConvolution)
from fla.modules.layernorm_gated import RMSNormGated  # noqa: E402
from fla.modules.mlp import SwiGLULinear  # noqa: E402
from fla.ops.delta_rule.naive import delta_rule_recurrence  # noqa: E402
from fla.ops.gated_delta_rule.gate import naive_gdn_gate  # noqa: E402
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule  # noqa: E402
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence  # noqa: E402
from fla.ops.gla.naive import naive_recurrent_gla  # noqa: E402
from fla.ops.hgrn.naive import naive_recurrent_hgrn  # noqa: E402
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate  # noqa: E402
from fla.ops.kda.naive import naive_recurrent_kda  # noqa: E402
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn  # noqa: E402
from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7  # noqa: E402
from fla.ops.rwkv7.fused_k_update import k_update_ref  # noqa: E402
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref  # noqa: E402
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402


def first_config(self, *args, **kwargs):
    """Autotuner.run without timing: nothing to tune in an interpreter."""
    self.nargs = dict(zip(self.arg_names, args))
    config = self.prune_configs(kwargs)[0]
    out = self.fn.run(*args, **kwargs, **config.all_kwargs())
    self.nargs = None
    return out


Autotuner.run = first_config


def flash_attention(q, k, v, causal, window_size):
    """flash_attn_func: [B, T, H, D], the last query sees the last key."""
    assert causal and window_size[1] in (-1, 0)
    tq, tk, groups = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    distance = (torch.arange(tq)[:, None] + tk - tq) - torch.arange(tk)
    seen = distance >= 0
    if window_size[0] >= 0:
        seen &= distance <= window_size[0]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


fla.layers.attn.flash_attn_func = flash_attention


def rms(x, weight, eps):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rms_norm(self, x, residual=None, prenorm=False):
    if residual is not None:
        x = x + residual
    y = rms(x, self.weight, self.eps)
    return (y, x) if prenorm else y


def rms_norm_gated(self, x, g):
    gate = torch.sigmoid(g) if self.activation == "sigmoid" else F.silu(g)
    return rms(x, self.weight, self.eps) * gate


def mamba_norm(self, x, z):
    """Mamba-2's, with its gate before the norm or after it."""
    if not self.norm_before_gate:
        x, z = x * F.silu(z), None
    groups = x.unflatten(-1, (-1, self.group_size or x.shape[-1]))
    y = rms(groups, None, self.eps).flatten(-2) * self.weight
    return y if z is None else y * F.silu(z)


def rms_norm_linear(x, norm_weight, norm_bias, weight, bias, eps=1e-5):
    assert norm_bias is None
    return F.linear(rms(x, norm_weight, eps), weight, bias)


def layer_norm(self, x, residual=None, prenorm=False):
    if residual is not None:
        x = x + residual
    y = F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
    return (y, x) if prenorm else y


def group_norm(self, x):
    return F.group_norm(x.flatten(0, 1), self.num_groups, self.weight, self.bias,
                        self.eps).view_as(x)


def short_convolution(self, x, cache=None, output_final_state=False, cu_seqlens=None, mask=None):
    assert cu_seqlens is None and mask is None
    width = self.kernel_size[0]
    if cache is None:
        cache = x.new_zeros(x.shape[0], x.shape[2], width)
    all_x = torch.cat([cache, x.transpose(1, 2)], -1)
    y = F.conv1d(all_x[..., 1:], self.weight, self.bias, groups=x.shape[2]).transpose(1, 2)
    return F.silu(y) if self.activation else y, all_x[..., -width:] if output_final_state else None


def rotary(self, q, k, seqlen_offset=0, max_seqlen=None, cu_seqlens=None):
    assert cu_seqlens is None
    at = torch.arange(q.shape[1], dtype=torch.float32) + seqlen_offset
    angle = torch.outer(at, self.inv_freq)[:, None]
    cos, sin = angle.cos(), angle.sin()

    def rotate(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return rotate(q), rotate(k)


def swiglu(x, y):
    return F.silu(x) * y


def swiglu_linear(self, x, y, weight, bias):
    return F.linear(swiglu(x, y), weight, bias)


# The recurrences, by the names under which the layers call them. Layers ask for different layouts of
# the state; each only passes back the state that it got here, so the layout does not matter.

def l2(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gla_op(q, k, v, gk=None, g=None, initial_state=None, output_final_state=False, **_):
    return naive_recurrent_gla(q, k, v, g if gk is None else gk, initial_state, output_final_state)


def retention_op(q, k, v, initial_state=None, output_final_state=False, **_):
    gamma = (1 - 2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float32))).log()
    return naive_recurrent_simple_gla(q, k, v, gamma.expand(q.shape[:3]),
                                      initial_state=initial_state,
                                      output_final_state=output_final_state)


def delta_op(q, k, v, beta, initial_state=None, output_final_state=False,
             use_qk_l2norm_in_kernel=False, **_):
    if use_qk_l2norm_in_kernel:
        q, k = l2(q), l2(k)
    q, k, v, beta = (x.transpose(1, 2) for x in (q, k, v, beta))
    o, state = delta_rule_recurrence(q, k, v, beta, initial_state, output_final_state)
    return o.transpose(1, 2), state


def gated_delta_op(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, initial_state=None,
                   output_final_state=False, **_):
    q, k = (l2(x).repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    return naive_recurrent_gated_delta_rule(q, k, v, beta, naive_gdn_gate(g, A_log, dt_bias),
                                            initial_state=initial_state,
                                            output_final_state=output_final_state)


def kda_op(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, lower_bound=None,
           initial_state=None, output_final_state=False, **_):
    beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    if lower_bound is None:
        g = naive_kda_gate(g, A_log, dt_bias)
    else:
        g = naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound)
    return naive_recurrent_kda(l2(q), l2(k), v, g, beta, initial_state=initial_state,
                               output_final_state=output_final_state)


def hgrn_op(x, g, initial_state=None, output_final_state=False, **_):
    return naive_recurrent_hgrn(x, g, initial_state, output_final_state)


def linear_op(q, k, v, initial_state=None, output_final_state=False, normalize=False, **_):
    return naive_recurrent_linear_attn(q, k, v, initial_state=initial_state, normalize=normalize,
                                       output_final_state=output_final_state)


def token_shift(x, cu_seqlens=None, cache=None, output_cache=False):
    assert cu_seqlens is None and output_cache
    before = torch.zeros_like(x[:, :1]) if cache is None else cache[:, None]
    return torch.cat([before, x[:, :-1]], 1) - x, x[:, -1]


def rwkv7_op(r, w, k, v, a, b, scale, initial_state=None, output_final_state=False, **_):
    assert scale == 1
    r = r * r.shape[-1] ** 0.5  # what the naive op divides by
    o, state = dplr_recurrence(*(x.transpose(1, 2) for x in (r, k, v, a, b, w)), initial_state,
                               output_final_state)
    return o.transpose(1, 2), state


def rwkv7_mul_op(r, w, k, v, kk, a, **kw):
    return rwkv7_op(r, w, k, v, -kk, kk * a, **kw)


FUNCTIONS = {
    rwkv7: dict(chunk_rwkv7=rwkv7_op, fused_mul_recurrent_rwkv7=rwkv7_mul_op, l2_norm=l2,
                fused_addcmul_rwkv7=torch_addcmul_rwkv7, fused_k_rwkv7=k_update_ref,
                gate_output_correction=gate_output_correction_ref, token_shift=token_shift),
    modeling_rwkv7: dict(token_shift=token_shift),
    gla: dict(fused_recurrent_gla=gla_op, chunk_gla=gla_op),
    hgrn2: dict(fused_recurrent_gla=gla_op, chunk_gla=gla_op, rms_norm_linear=rms_norm_linear,
                swish=F.silu),
    hgrn: dict(fused_recurrent_hgrn=hgrn_op, chunk_hgrn=hgrn_op, swiglu=swiglu),
    multiscale_retention: dict(fused_recurrent_retention=retention_op,
                               chunk_retention=retention_op),
    delta_net: dict(fused_recurrent_delta_rule=delta_op, chunk_delta_rule=delta_op),
    gated_deltanet: dict(fused_recurrent_gated_delta_rule=gated_delta_op,
                         chunk_gated_delta_rule=gated_delta_op),
    kda: dict(fused_recurrent_kda=kda_op, chunk_kda=kda_op),
    linear_attn: dict(fused_recurrent_linear_attn=linear_op, fused_chunk_linear_attn=linear_op,
                      chunk_linear_attn=linear_op),
}
METHODS = {
    RMSNorm: rms_norm,
    LayerNorm: layer_norm,
    GroupNorm: group_norm,
    RMSNormGated: mamba_norm,
    FusedRMSNormGated: rms_norm_gated,
    ShortConvolution: short_convolution,
    RotaryEmbedding: rotary,
    SwiGLULinear: swiglu_linear,
}


@contextlib.contextmanager
def torch_ops():
    """Context in which the layers of the families above call kernels for activations only."""
    with contextlib.ExitStack() as stack:
        for module, functions in FUNCTIONS.items():
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(module, name, function))
        for cls, forward in METHODS.items():
            stack.enter_context(mock.patch.object(cls, "forward", forward))
        # not fused: equivalent to three convolutions
        stack.enter_context(mock.patch.object(gated_deltanet.GatedDeltaNet, "_use_fused_qkv_conv",
                                              lambda *_, **__: False))
        yield
