"""The job's fields for sampler explained."""

from pydantic import Field

from penstock.graph.documents import AutoCount, StrictDocument


class ExplainOptions(StrictDocument):
    """How explanations choose what is sent between machines. Other samplers refuse these fields."""

    explain_every: AutoCount = Field(
        30,
        description="explained: steps between two explanations of the model; auto: 30, and more where explaining would"
        " take more than 3 % of a worker's processor time by arithmetic (docs/explained.md)",
    )
    explain_delay: int = Field(
        10, ge=0, description="explained: steps from taking an explanation's weights until it is in force"
    )
    explain_steps: int = Field(50, ge=1, description="explained: steps that masks are optimised for at most")
    explain_loss: float = Field(
        0.01,
        ge=0,
        description="explained: masks are found when ten steps change their loss by less than this share of the first;"
        " 0: only after all steps",
    )
    explain_rows: int = Field(256, ge=1, description="explained: remote rows that one explanation reads at most")
    remote_bias: float = Field(
        0.1,
        ge=0,
        le=1,
        description="explained: share of a vertex's draws that are moved from remote neighbours to local ones",
    )
    feature_share: float = Field(
        0.85, gt=0, le=1, description="explained: share of the columns that remote rows are sent with"
    )
